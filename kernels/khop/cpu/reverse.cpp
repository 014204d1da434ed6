#include "khop/cpu/reverse.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "khop/cpu/buffer.hpp"

namespace khop::cpu {

void add_reverses(const EdgeList& own, const EdgeList& reversed, bool with_edges, EdgeList& out) {
  struct Edge {
    int64_t destination;
    int64_t source;
    int64_t id;
  };
  const int64_t count = own.sources.size();
  const int64_t total = count + reversed.sources.size();
  Buffer<int64_t> row(total);
  Buffer<int64_t> col(total);
  own.write_endpoints(row.data(), col.data());
  reversed.write_endpoints(col.data() + count, row.data() + count);
  std::vector<Edge> edges(static_cast<std::size_t>(total));
  for (int64_t j = 0; j < total; ++j) {
    const EdgeList& list = j < count ? own : reversed;
    const int64_t id = with_edges ? list.edges[j < count ? j : j - count] : 0;
    edges[static_cast<std::size_t>(j)] = {col[j], row[j], id};
  }
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.destination != b.destination ? a.destination < b.destination : a.source < b.source;
  });
  const auto end = std::unique(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.destination == b.destination && a.source == b.source;
  });
  out.clear();
  out.in_hop_order = false;
  for (auto edge = edges.begin(); edge != end; ++edge) {
    out.sources.push_back(static_cast<int32_t>(edge->source));
    out.destinations.push_back(static_cast<int32_t>(edge->destination));
    if (with_edges) out.edges.push_back(edge->id);
  }
}

}  // namespace khop::cpu
