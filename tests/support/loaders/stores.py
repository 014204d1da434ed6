"""A user's feature store, made of PyG's example."""

from torch_geometric.testing import MyFeatureStore


class RowStore(MyFeatureStore):
    """PyG's example store, indexed by row. One call requests all attributes of a batch."""

    def __init__(self, as_numpy=False):
        super().__init__()
        self.calls = []
        self._as_numpy = as_numpy

    def _get_tensor(self, attr):
        _, tensor = self.store[self.key(attr)]
        picked = tensor if attr.index is None else tensor[attr.index]
        return picked.numpy() if self._as_numpy else picked

    def _get_tensor_size(self, attr):
        return tuple(self.store[self.key(attr)][1].shape)

    def _multi_get_tensor(self, attrs):
        self.calls.append([(a.group_name, a.attr_name) for a in attrs])
        return super()._multi_get_tensor(attrs)
