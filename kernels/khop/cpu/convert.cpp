#include "khop/cpu/convert.hpp"

#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

template <class Id, class Ptr>
int64_t count_rows(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
                   Ptr* indptr, int64_t num_rows) {
  for (int64_t e = 0; e < num_edges; ++e) {
    if (!keys.is_valid(e) || !neighbors.is_valid(e)) return e;
    ++indptr[keys[e] + 1];
  }
  for (int64_t row = 0; row < num_rows; ++row) indptr[row + 1] += indptr[row];
  return -1;
}

template <class Id, class Ptr, class Col, class EdgeId>
void fill_rows(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
               Ptr* indptr, int64_t num_rows, Col* indices, EdgeId* edge_ids) {
  // A row's edges land at scattered places: reading ahead hides the misses of the cursors.
  constexpr int64_t kAhead = 16;
  for (int64_t e = 0; e < num_edges; ++e) {
    if (e + kAhead < num_edges) prefetch_line_to_write(&indptr[keys[e + kAhead]]);
    const Ptr place = indptr[keys[e]]++;
    indices[place] = static_cast<Col>(neighbors[e]);
    if (edge_ids != nullptr) edge_ids[place] = static_cast<EdgeId>(e);
  }
  // Each cursor now stands at its row's end, which is the next row's begin.
  for (int64_t row = num_rows; row > 0; --row) indptr[row] = indptr[row - 1];
  indptr[0] = 0;
}

#define KHOP_INSTANTIATE_FILL(Id, Ptr, Col)                                                \
  template void fill_rows<Id, Ptr, Col, int32_t>(const IdColumn<Id>&, const IdColumn<Id>&, \
                                                 int64_t, Ptr*, int64_t, Col*, int32_t*);  \
  template void fill_rows<Id, Ptr, Col, int64_t>(const IdColumn<Id>&, const IdColumn<Id>&, \
                                                 int64_t, Ptr*, int64_t, Col*, int64_t*);
#define KHOP_INSTANTIATE(Id, Ptr)                                                               \
  template int64_t count_rows<Id, Ptr>(const IdColumn<Id>&, const IdColumn<Id>&, int64_t, Ptr*, \
                                       int64_t);                                                \
  KHOP_INSTANTIATE_FILL(Id, Ptr, int32_t)                                                       \
  KHOP_INSTANTIATE_FILL(Id, Ptr, int64_t)
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE
#undef KHOP_INSTANTIATE_FILL

}  // namespace khop::cpu
