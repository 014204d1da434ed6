"""Packages that are installed for a test: what `pip` leaves of one, in a folder of its own."""


def install(folder, name, entry_points, **modules):
    """Installs a package as `pip` does: modules, and a folder that lists its entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
