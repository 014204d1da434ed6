#include "khop/cpu/hotness.hpp"

#include <stdexcept>

#include "khop/core/hotness.hpp"

namespace khop::cpu {

template <class Ptr, class Col>
void accumulate_hotness(const CsrView<Ptr, Col>& graph, const double* frontier, int64_t fanout,
                        bool replace, double* log_missed, int64_t num_nodes) {
  for (int64_t row = 0; row < graph.num_rows; ++row) {
    const int64_t begin = static_cast<int64_t>(graph.indptr[row]);
    const int64_t end = static_cast<int64_t>(graph.indptr[row + 1]);
    if (!graph.row_is_sound(begin, end)) throw std::runtime_error("row pointers are corrupt");
    if (!is_drawn_from(frontier[row], end - begin, fanout)) continue;
    const double log_missing =
        log_probability_of_missing(frontier[row], end - begin, fanout, replace);
    for (int64_t e = begin; e < end; ++e) {
      const auto neighbor = static_cast<int64_t>(graph.indices[e]);
      if (neighbor < 0 || neighbor >= num_nodes) {
        throw std::out_of_range("a neighbour's id is not below the number of nodes");
      }
      log_missed[neighbor] += log_missing;
    }
  }
}

template void accumulate_hotness<int32_t, int32_t>(const CsrView<int32_t, int32_t>&, const double*,
                                                   int64_t, bool, double*, int64_t);
template void accumulate_hotness<int32_t, int64_t>(const CsrView<int32_t, int64_t>&, const double*,
                                                   int64_t, bool, double*, int64_t);
template void accumulate_hotness<int64_t, int32_t>(const CsrView<int64_t, int32_t>&, const double*,
                                                   int64_t, bool, double*, int64_t);
template void accumulate_hotness<int64_t, int64_t>(const CsrView<int64_t, int64_t>&, const double*,
                                                   int64_t, bool, double*, int64_t);

}  // namespace khop::cpu
