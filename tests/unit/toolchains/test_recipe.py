"""Recipes and locks: what is read, what is refused, and what their ids depend on."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ci.paths import Layout
from ci.toolchains.lockfile import LockedFile, load_lock, lock_text
from ci.toolchains.recipe import DEBIAN_ARCHS, Recipe, recipe_names
from opencoti.errors import ConfigError
from tests.unit.toolchains.conftest import TinyToolchain

# Toolchains that exist for x86-64 hosts alone.
ONE_ARCH = {("rocm", "aarch64"), ("lavapipe", "aarch64"), ("cosmocc", "aarch64")}
ENTRY = LockedFile(name="libstdc++6", version="1:12~x", arch="amd64", sha256="a" * 64, size=5)


def test_a_lock_is_read_back_as_it_was_written(tiny: TinyToolchain) -> None:
    path = tiny.folder / "debs.lock"
    other = LockedFile(name="dash", version="1", arch="arm64", filename="d.deb", sha256="b" * 64, size=6)
    path.write_text(lock_text("deb", [other, ENTRY], "Two\nlines"))
    assert load_lock(path, "deb") == (ENTRY, other)
    assert path.read_text().startswith("# Two\n# lines\n")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace("size = 5", ""), "'size'"),
        (lambda text: text.replace("a" * 64, "a" * 63), "not 64 lowercase hex digits"),
        (lambda text: text.replace("a" * 64, "A" * 64), "not 64 lowercase hex digits"),
        (lambda text: text + text, "stands twice"),
        (lambda text: text.replace("size = 5", 'size = 5\nfilename = "../x"'), "not a plain name"),
        (lambda text: text.replace("[[deb]]", "[[deb"), "Expected"),
        (lambda text: text.replace("size = 5", "size = -5"), "-5"),
        (lambda text: text.replace("[[deb]]", "[deb]"), "no list of tables"),
    ],
)
def test_a_malformed_lock_is_refused_by_name(
    change: Callable[[str], str], why: str, tiny: TinyToolchain
) -> None:
    path = tiny.folder / "debs.lock"
    path.write_text(change(lock_text("deb", [ENTRY], "")))
    with pytest.raises(ConfigError) as caught:
        load_lock(path, "deb")
    assert caught.value.error_id == "lock-malformed"
    assert str(path) in caught.value.what
    assert why in caught.value.why


def test_a_wheel_that_is_not_locked_is_named(tiny: TinyToolchain) -> None:
    recipe = tiny.folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"1.0"', '"1.1"'))
    with pytest.raises(ConfigError, match=re.escape("tinycc 1.1 of recipe.toml is not locked")):
        tiny.recipe()


def test_the_ids_change_with_what_they_stand_for(tiny: TinyToolchain) -> None:
    toolchain_id, image_id = tiny.recipe().id, tiny.recipe().image_id
    (tiny.folder / "Dockerfile").write_text("FROM scratch\nUSER 1\n")
    assert tiny.recipe().id == toolchain_id
    assert tiny.recipe().image_id != image_id
    tiny.write_lock("1" * 64)
    assert tiny.recipe().id != toolchain_id


@pytest.mark.parametrize("arch", DEBIAN_ARCHS)
def test_the_locks_of_this_repository_are_complete_and_hold_no_address(
    arch: str, real_layout: Layout
) -> None:
    for name in recipe_names(real_layout.containers):
        if (name, arch) in ONE_ARCH:
            continue
        recipe = Recipe.load(real_layout.containers / name, arch)
        wanted = {(group.suite, deb) for group in recipe.deb_groups for deb in group.names}
        assert {(deb.suite, deb.name) for deb in recipe.debs} == wanted
    for path in real_layout.containers.rglob("*.lock"):
        assert "://" not in path.read_text()


def test_a_recipe_that_extends_another_has_its_parts_and_replaces_its_files(tiny: TinyToolchain) -> None:
    base = tiny.folder
    (base / "tree/bin").mkdir(parents=True)
    (base / "tree/bin/cc").write_text("of the base")
    (base / "tree/bin/ar").write_text("of the base")
    own = base.with_name("own")
    (own / "tree/bin").mkdir(parents=True)
    (own / "tree/bin/cc").write_text("its own")
    (own / "tree/bin/cc").chmod(0o755)
    (own / "recipe.toml").write_text('name = "own"\nextends = "tiny"\ndescription = "more"\n')
    recipe = Recipe.load(own)
    assert {file.path: file.source.parent.parent.parent.name for file in recipe.overlay} == {
        "bin/ar": "tiny",
        "bin/cc": "own",
    }
    assert [rule.name for rule in recipe.rules] == ["tinycc"]
    assert recipe.own_rules == ()
    assert recipe.dockerfile == base / "Dockerfile"
    before = recipe.id
    (own / "tree/bin/cc").write_text("changed")
    assert Recipe.load(own).id != before


DEBS = '\n[[debs]]\nsuite = "trixie"\nnames = ["libc6"]\nto = "x"\n'


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('name = "tiny"', 'name = "tiny"\nextends = "tiny"', "extend 'tiny' (of tiny)"),
        ('name = "tiny"', 'name = "tiny"\nextends = "../tiny"', "extend '../tiny'"),
        ('name = "tiny"', 'name = "Ti ny"', "not that of its folder"),
        ('names = ["libc6"]', 'names = "libc6"', "'libc6'"),
        ('"libc6"', '"-o=Dir::Etc=x"', "'-o=Dir::Etc=x'"),
        ('"trixie"', '"trixie main\\ndeb"', "trixie main"),
        ('to = "x"', 'to = "../x"', "'../x'"),
        ('to = "x"', 'to = "/x"', "'/x'"),
        ("nothing", "nothing", "libc6 of trixie in recipe.toml is not locked"),
    ],
)
def test_a_malformed_recipe_is_refused(before: str, after: str, why: str, tiny: TinyToolchain) -> None:
    file = tiny.folder / "recipe.toml"
    file.write_text((file.read_text() + DEBS).replace(before, after))
    with pytest.raises(ConfigError) as caught:
        tiny.recipe()
    assert caught.value.error_id in ("recipe-malformed", "lock-malformed")
    assert why in caught.value.why


def test_a_toolchain_for_other_hosts_is_refused(real_layout: Layout) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.load(real_layout.containers / "rocm", "aarch64")
    assert caught.value.error_id == "toolchain-arch-unsupported"
