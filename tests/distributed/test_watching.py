"""A job as those see it who watch it: its metrics and its logs."""

import urllib.request

import jobs

import prometheus
from khop import metrics


def scrape(page):
    """What a page of metrics says of a loader: {metric: {value of its other label: number}}."""
    with urllib.request.urlopen(page.url, timeout=10) as answer:
        read = prometheus.read(answer.read().decode())
    found = {}
    for name, (_, _, samples) in read.items():
        for (_, labels), value in samples.items():
            told = dict(labels)
            assert (told.pop("loader"), told.pop("rank")) == ("train", "0")
            found.setdefault(name, {})[next(iter(told.values()), None)] = value
    return found


def test_metrics_of_a_trainer(folder_of):
    """Read while batches are made: never less than before, in the end what `stats()` says."""
    loader = jobs.make_loader(folder_of("random", 2), 2, 1)
    seen = []
    with metrics.serve(0, lambda: metrics.of_loaders({"train": loader}, {"rank": 0})) as page:
        for number, _ in enumerate(loader):
            if number % 4 == 0:
                seen.append(scrape(page))
        last = scrape(page)
    counts = [page["khop_loader_batches_total"][None] for page in [*seen, last]]
    assert counts == sorted(counts)
    assert counts[-1] == len(loader) == loader.stats().batches
    stats = loader.stats()
    assert last["khop_loader_rows_total"] == stats.rows
    assert last["khop_loader_trainer_seconds_total"] == stats.trainer_seconds
    assert last["khop_loader_samplers"][None] == 1
    for page in seen:
        assert sum(page["khop_loader_rows_total"].values()) == page["khop_loader_nodes_total"][None]
