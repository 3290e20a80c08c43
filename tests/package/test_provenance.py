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
from inside import Origin, content_key, manifest, sha256_of_bytes, write_atomically

import probe


def test_a_manifest_records_everything_that_determines_a_result(model) -> None:
    options = {
        "seed": 3,
        "command": ["probe", "report"],
        "data_sha256": "ab" * 32,
        "words": ["mole"],
    }
    record, again = (manifest(model.name, model.origin, **options) for _ in range(2))
    assert record.items() >= options.items() and record["model"] == model.name
    assert record["origin"] == {
        "kind": "folder",
        "location": model.name,
        "revision": None,
        "file": "",
    }
    assert record["weights_sha256"] == model.origin.sha256
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["probe"] == probe.__version__
    assert {"torch", "transformers", "transformer-lens"} <= set(record["versions"])
    assert json.loads(json.dumps(record)) == record and record["created"].endswith("+00:00")
    assert {key for key in record if record[key] != again[key]} <= {"created"}
    with pytest.raises(TypeError):
        manifest(model.name, model.origin, path=Path("x"), **options)


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


@given(st.lists(st.text(), min_size=1, max_size=4), st.lists(st.text(), min_size=1, max_size=4))
def test_different_parts_have_different_keys(first: list[str], second: list[str]) -> None:
    assert (content_key(*first) == content_key(*second)) == (first == second)


def test_a_key_is_the_sha256_of_its_parts_with_their_types() -> None:
    part = b'j{"a": 1}'
    assert content_key({"a": 1}) == sha256_of_bytes(len(part).to_bytes(8, "big") + part)[:16]
    assert len({content_key(part) for part in ("1", 1, b"1", None, ["1"])}) == 5
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


@pytest.mark.parametrize("content", ["näive\r\nline\n", b"\x00\xff"])
def test_content_is_written_byte_for_byte(tmp_path: Path, content: str | bytes) -> None:
    path = write_atomically(tmp_path / "new" / "page.html", content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_no_file_is_ever_world_writable_or_has_a_predictable_name(tmp_path, monkeypatch) -> None:
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
    modes = [mode for _, mode in opened] + [(tmp_path / "page.html").stat().st_mode]
    assert not any(mode & stat.S_IWOTH for mode in modes)
    names = {Path(name).name for name, _ in opened}
    assert len(names) == 2
    assert all(re.fullmatch(r"\.page\.html\.[0-9a-f]{16}\.part", name) for name in names)


def test_a_reader_never_sees_half_a_file_and_a_crash_leaves_the_old_one(
    tmp_path, monkeypatch
) -> None:
    target = write_atomically(tmp_path / "page.html", "old")
    contents: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: contents.append(target.read_text()))
    write_atomically(target, "new")
    assert (contents, target.read_text()) == (["old"], "new")

    def crash(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, "newer and longer")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


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
    assert (tmp_path / "file").read_text() == "in the way"
    assert [*(tmp_path / "folder").iterdir()] == []
