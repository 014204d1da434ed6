"""GLT's helpers: tensors, compressed rows, devices, files."""

from khop.glt.utils.common import (
    UNITS as UNITS,
    CastMixin as CastMixin,
    count_dict as count_dict,
    ensure_dir as ensure_dir,
    get_free_port as get_free_port,
    load_ckpt as load_ckpt,
    merge_dict as merge_dict,
    parse_size as parse_size,
    python_exit_status as python_exit_status,
    save_ckpt as save_ckpt,
    seed_everything as seed_everything,
    singleton as singleton,
)
from khop.glt.utils.device import (
    assign_device as assign_device,
    ensure_device as ensure_device,
    get_available_device as get_available_device,
)
from khop.glt.utils.tensor import (
    append_tensor_to_file as append_tensor_to_file,
    apply_to_all_tensor as apply_to_all_tensor,
    convert_to_tensor as convert_to_tensor,
    default_id_filter as default_id_filter,
    default_id_select as default_id_select,
    id2idx as id2idx,
    index_select as index_select,
    load_and_concatenate_tensors as load_and_concatenate_tensors,
    share_memory as share_memory,
    squeeze as squeeze,
    tensor_equal_with_device as tensor_equal_with_device,
)
from khop.glt.utils.topo import (
    coo_to_csc as coo_to_csc,
    coo_to_csr as coo_to_csr,
    ptr2ind as ptr2ind,
)
