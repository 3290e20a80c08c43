"""Manifests, content keys, and files that are complete or absent."""

import json
import os
import platform
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.model.model import Model
from probe.provenance import Origin, content_key, manifest, sha256_of_bytes, write_atomically


def test_a_manifest_records_everything_that_determines_a_result(model: Model) -> None:
    record = manifest(
        model.name,
        model.origin,
        seed=3,
        command=["probe", "report"],
        data_sha256="ab" * 32,
        words=["mole"],
    )
    assert record["model"] == model.name
    assert record["origin"] == {
        "kind": "folder",
        "location": model.name,
        "revision": None,
        "file": "",
    }
    assert record["weights_sha256"] == model.origin.sha256
    assert (record["seed"], record["command"], record["data_sha256"]) == (
        3,
        ["probe", "report"],
        "ab" * 32,
    )
    assert record["words"] == ["mole"]
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["probe"] == probe.__version__
    assert {"torch", "transformers", "transformer-lens"} <= set(record["versions"])
    assert json.loads(json.dumps(record)) == record


def test_an_origin_is_described_in_words_and_a_quantised_file_is_named() -> None:
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    packed = Origin("package", "smollm2", "0.1.2", "0" * 64, "Q4_1, float32", file=file)
    assert packed.described == (
        f"package: smollm2, revision 0.1.2, {file}, stored in Q4_1, float32"
    )
    assert packed.quantised("float32") == (
        f"{file}, its weights stored in Q4_1, float32 and computed in float32"
    )
    unnamed = Origin("folder", "mine", None, "0" * 64, "F8_E4M3")
    assert unnamed.quantised("float32").startswith("mine, its weights stored in F8_E4M3 and comp")
    merged = Origin("in memory", "gpt2", None, "0" * 64, read="GPT2LMHeadModel, adapters merged: a")
    assert merged.described == (
        "in memory: gpt2, GPT2LMHeadModel, adapters merged: a, stored in float32"
    )
    assert merged.quantised("float32") == ""
    record = manifest("m", packed, seed=0, command="", data_sha256="", dtype="float64")
    assert record["described"] == packed.described
    assert record["quantised"].endswith(" and computed in float64")


def test_only_the_time_differs_between_two_manifests_and_values_outside_json_are_refused(
    model: Model,
) -> None:
    first, second = (
        manifest(model.name, model.origin, seed=0, command=[], data_sha256="") for _ in range(2)
    )
    assert {key for key in first if key != "created" and first[key] != second[key]} == set()
    assert first["created"].endswith("+00:00")
    with pytest.raises(TypeError):
        manifest(model.name, model.origin, seed=0, command=[], data_sha256="", path=Path("x"))


@given(st.lists(st.text(), min_size=1, max_size=4), st.lists(st.text(), min_size=1, max_size=4))
def test_different_parts_have_different_keys(first: list[str], second: list[str]) -> None:
    assert (content_key(*first) == content_key(*second)) == (first == second)


def test_a_key_is_the_sha256_of_its_parts_and_depends_on_types_but_not_on_the_order_of_keys() -> (
    None
):
    part = b'j{"a": 1}'
    assert content_key({"a": 1}) == sha256_of_bytes(len(part).to_bytes(8, "big") + part)[:16]
    assert len({content_key(part) for part in ("1", 1, b"1", None, ["1"])}) == 5
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


@pytest.mark.parametrize("content", ["näive\r\nline\n", b"\x00\xff"])
def test_content_is_written_byte_for_byte(tmp_path: Path, content: str | bytes) -> None:
    path = write_atomically(tmp_path / "new" / "page.html", content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o664 & ~current_umask()


def test_no_file_is_ever_world_writable_or_has_a_predictable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        opened.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    umask = os.umask(0)
    try:
        for _ in range(2):
            write_atomically(tmp_path / "page.html", "text")
    finally:
        os.umask(umask)
    assert all(not mode & stat.S_IWOTH for _, mode in opened)
    assert not stat.S_IMODE((tmp_path / "page.html").stat().st_mode) & stat.S_IWOTH
    names = [Path(name).name for name, _ in opened]
    assert len(set(names)) == 2 and all(
        re.fullmatch(r"\.page\.html\.[0-9a-f]{16}\.part", name) for name in names
    )


def current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_atomically(tmp_path / "page.html", "old")

    def crash(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "new and longer")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_atomically(tmp_path / "page.html", "old")
    contents: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: contents.append(target.read_text()))
    write_atomically(target, "new")
    assert (contents, target.read_text()) == (["old"], "new")


def test_an_unwritable_path_is_refused_and_stays_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    for target, reason in (
        (tmp_path / "file" / "page.html", "there is a file with the name of its folder"),
        (tmp_path / "folder", "is a directory"),
    ):
        with pytest.raises(probe.InputError) as caught:
            write_atomically(target, "text")
        expected = f"Cannot write {target}: {reason}. Choose another folder."
        assert str(caught.value) == expected
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}
    assert (tmp_path / "file").read_text() == "in the way" and not list(
        (tmp_path / "folder").iterdir()
    )
