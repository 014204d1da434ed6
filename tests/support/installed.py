"""Fake installed packages for tests: the files that `pip` leaves, in a separate folder."""


def install(folder, name, entry_points, **modules):
    """Install a package in `folder` as `pip` does: its modules, and a list of its entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
