"""The guide's sections in the order in which its reader runs them."""

from pathlib import Path

import pytest

from guide import products, running


@pytest.fixture(scope="package")
def prepared(tmp_path_factory):
    """Names after section 1 up to the seeds: the data set, and the seeds of two parts."""
    pytest.importorskip("ogb")
    products.let_ogb_read_its_files()
    root = tmp_path_factory.mktemp("ogbn-products")
    products.save(root)
    # The guide saves into folders that it does not make.
    for name in ("label", "train-idx-partitions", "test-idx-partitions"):
        (root / name).mkdir()
    names = running.run("1 data", {"ROOT": str(root)})
    return running.run("1.1 seeds", names)


@pytest.fixture(scope="package")
def random_folder(prepared):
    """Names after the random partitioning, whose folder is then set aside.

    The guide shows two ways to fill one folder; khop does not write into a folder that exists.
    """
    names = running.run("1.2 random", dict(prepared))
    folder = Path(names["root_dir"]) / "graph-partitions"
    return {**names, "folder": folder.rename(f"{folder}-random")}


@pytest.fixture(scope="package")
def parts(prepared, random_folder):
    """Names after the partitioning by hotness, whose folder the later sections load."""
    return running.run("1.2 frequency", {**prepared, "random": random_folder})
