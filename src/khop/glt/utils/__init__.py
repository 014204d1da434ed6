"""GLT's helpers: tensors, compressed rows, devices, files."""

from khop.data.hot_rows import parse_bytes as parse_size
from khop.glt.utils.common import (
    UNITS,
    CastMixin,
    count_dict,
    ensure_dir,
    get_free_port,
    load_ckpt,
    merge_dict,
    python_exit_status,
    save_ckpt,
    seed_everything,
    singleton,
)
from khop.glt.utils.device import assign_device, ensure_device, get_available_device
from khop.glt.utils.tensor import (
    append_tensor_to_file,
    apply_to_all_tensor,
    convert_to_tensor,
    default_id_filter,
    default_id_select,
    id2idx,
    index_select,
    load_and_concatenate_tensors,
    share_memory,
    squeeze,
    tensor_equal_with_device,
)
from khop.glt.utils.topo import coo_to_csc, coo_to_csr, ptr2ind

__all__ = [
    "UNITS",
    "CastMixin",
    "append_tensor_to_file",
    "apply_to_all_tensor",
    "assign_device",
    "convert_to_tensor",
    "coo_to_csc",
    "coo_to_csr",
    "count_dict",
    "default_id_filter",
    "default_id_select",
    "ensure_device",
    "ensure_dir",
    "get_available_device",
    "get_free_port",
    "id2idx",
    "index_select",
    "load_and_concatenate_tensors",
    "load_ckpt",
    "merge_dict",
    "parse_size",
    "ptr2ind",
    "python_exit_status",
    "save_ckpt",
    "seed_everything",
    "share_memory",
    "singleton",
    "squeeze",
    "tensor_equal_with_device",
]
