"""The picture of layouts says of the chosen layers what the model says, and every text of it can be read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrow, FancyArrowPatch, Rectangle
from test_plots import drawn, overlapping, said, texts

from pdlab import models, theme
from pdlab.mesh import Axis, Spread
from pdlab.models import Model
from pdlab.models.spec import Exchange, Segment, Tensor
from pdlab.ops import Kind
from pdlab.plots import layout
from pdlab.plots.layout_chain import links, weights

COLLECTIVES = {
    None: "nothing",
    Kind.ALL_REDUCE: "all-reduce",
    Kind.ALL_GATHER: "all-gather",
    Kind.REDUCE_SCATTER: "reduce-scatter",
    Kind.SPLIT: "split",
}


def linears(split: str, tp: int = 4) -> Model:
    return models.mlp(width=64, depth=4, tp=tp, split=split)


def transformer(split: str = "tensor", tp: int = 4, dropout: float = 0.0) -> Model:
    return models.transformer(width=64, heads=8, depth=1, tp=tp, split=split, dropout=dropout)


PICTURES: dict[str, tuple[Model, tuple[int, ...]]] = {
    "column": (linears("column"), (1,)),
    "row": (linears("row"), (1,)),
    "row and its loss": (linears("row"), (3,)),
    "column then row": (linears("tensor"), (0, 1)),
    "column then loss": (linears("tensor"), (2, 3)),
    "apart": (linears("column"), (0, 3)),
    "block": (transformer(), (1, 2)),
    "block with dropout": (transformer(dropout=0.1), (1, 2)),
    "ends": (transformer(), (0, 3)),
    "sequence": (transformer("sequence"), (1, 2)),
    "sequence ends": (transformer("sequence", dropout=0.1), (0, 3)),
    "two ranks": (transformer("sequence", 2), (0, 1, 2, 3)),
    "eight ranks": (transformer("sequence", 8), (0, 1, 2, 3)),
    "eight ranks, columns": (linears("column", 8), (0, 1, 2, 3)),
}
EVERY = pytest.mark.parametrize("name", PICTURES)


@cache
def picture(name: str) -> Figure:
    return layout(*PICTURES[name])


def tensors_drawn(name: str) -> Iterator[Tensor]:
    """Every tensor of the layers; one that ends a row may be drawn again at the beginning of the next one."""
    model, layers = PICTURES[name]
    for i in layers:
        for link in links(model.layers[i]):
            yield link.before
            yield link.after


def exchanges(name: str) -> list[Exchange]:
    model, layers = PICTURES[name]
    return [item for i in layers for item in model.layers[i] if isinstance(item, Exchange)]


def inside(axes: Axes, colours: list[str], middle: float, side: float) -> list[Rectangle]:
    """Rectangles in the colours of ranks whose middle is within `side` / 2 of a place across."""
    filled = [p for p in axes.patches if isinstance(p, Rectangle) and to_hex(p.get_facecolor()) in colours]
    return [p for p in filled if abs(p.get_x() + p.get_width() / 2 - middle) <= side / 2]


@EVERY
def test_nothing_overlaps_or_lies_outside(name: str) -> None:
    figure = picture(name)
    drawn(figure)
    found = texts(figure)
    extents = np.array([t.get_window_extent().extents for t in found])
    assert overlapping(found, extents) == []
    width, height = figure.bbox.width, figure.bbox.height
    assert extents.min() >= 0 and extents[:, 2].max() <= width and extents[:, 3].max() <= height
    [axes] = figure.axes
    around = axes.get_window_extent()
    for patch in axes.patches:
        extent = patch.get_window_extent()
        assert around.x0 <= extent.x0 and extent.x1 <= around.x1
        assert around.y0 <= extent.y0 and extent.y1 <= around.y1
    [legend] = figure.legends
    assert not legend.get_window_extent().overlaps(around)


@EVERY
def test_words_stay_in_their_box_and_off_the_arrows(name: str) -> None:
    figure = picture(name)
    drawn(figure)
    [axes] = figure.axes
    boxes = [p.get_window_extent() for p in axes.patches if type(p).__name__ == "FancyBboxPatch"]
    arrows = [p.get_window_extent() for p in axes.patches if isinstance(p, FancyArrow)]
    assert boxes
    for text in axes.texts:
        extent = text.get_window_extent()
        assert not any(extent.overlaps(arrow) for arrow in arrows), text.get_text()
        for box in boxes:
            if extent.overlaps(box) and text.get_rotation() == 0:
                assert box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text()


@EVERY
def test_every_segment_is_named_with_its_weights(name: str) -> None:
    model, layers = PICTURES[name]
    segments = [item for i in layers for item in model.layers[i] if isinstance(item, Segment)]
    [axes] = picture(name).axes
    found = Counter(text.get_text() for text in axes.texts)
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert Counter(item.name for item in segments) <= Counter(bold)
    expected = [f"{entry.names}\n{entry.holding.word}" for item in segments for entry in weights(item)]
    assert expected and Counter(expected) == Counter({text: n for text, n in found.items() if "\n" in text})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("column", {"weight, bias\ncolumns"}),
        ("row", {"weight\nrows", "bias\nwhole"}),
        ("block", {"norm\nwhole", "q, k, v\ncolumns", "out\nrows", "out.bias\nwhole", "up\ncolumns", "down\nrows"}),
        ("ends", {"token\nvocabulary", "position\nwhole", "norm\nwhole", "weight, bias\ncolumns"}),
        ("sequence ends", {"token\nvocabulary", "position\ntokens"}),
    ],
)
def test_weights_are_split_as_in_the_papers(name: str, expected: set[str]) -> None:
    assert expected <= {text.get_text() for text in picture(name).axes[0].texts}


@EVERY
def test_collectives_are_those_of_the_exchanges(name: str) -> None:
    """Words, arrows in their colours, and their directions: the forward to the right, the backward to the left."""
    [axes] = picture(name).axes
    expected = [(kind, way) for item in exchanges(name) for kind, way in ((item.forward, 1), (item.backward, -1))]
    words = Counter(text.get_text() for text in axes.texts)
    assert {word: words[word] for word in COLLECTIVES.values()} == {
        word: sum(kind is k for k, _ in expected) for kind, word in COLLECTIVES.items()
    }
    arrows = [
        (to_hex(p.get_facecolor()).upper(), int(np.sign(p._dx))) for p in axes.patches if isinstance(p, FancyArrow)
    ]
    assert Counter(arrows) == Counter((theme.COLOURS[kind], way) for kind, way in expected if kind is not None)


@pytest.mark.parametrize("name", ["column", "row", "block", "sequence"])
def test_each_exchange_has_its_own_collectives_above_and_below(name: str) -> None:
    [axes] = picture(name).axes
    at = {text: text.get_position() for text in axes.texts}
    for item in exchanges(name):
        [(x, y)] = [place for text, place in at.items() if text.get_text() == item.name]
        column = sorted((py - y, text.get_text()) for text, (px, py) in at.items() if abs(px - x) < 0.01)
        above, _, below = [entry for entry in column if abs(entry[0]) < 1.0]
        assert (above[1], below[1]) == (COLLECTIVES[item.forward], COLLECTIVES[item.backward])


@EVERY
def test_a_tensor_is_drawn_as_it_lies(name: str) -> None:
    """Bands, copies or summands: always one for each rank, beside each other for columns, under each other for tokens,
    hatched where the sum is still to be taken; and of the gradient too."""
    model, _ = PICTURES[name]
    [axes] = picture(name).axes
    tp = model.tp
    colours = theme.rank_colours(tp)
    by_name = {tensor.name: tensor for tensor in tensors_drawn(name)}
    names = [text for text in axes.texts if text.get_fontweight() != "bold" and text.get_text() in by_name]
    places = [(text, by_name[text.get_text()]) for text in names]
    assert {tensor.name for _, tensor in places} == set(by_name)
    for text, tensor in places:
        x, y = text.get_position()
        below = [p for p in inside(axes, colours, x, 1.0) if 0 < p.get_y() - y < 2.0]
        held = [layout for layout in (tensor.layout, tensor.grad) if layout is not None]
        assert len(below) == tp * len(held)
        below.sort(key=lambda p: -p.get_width() * p.get_height())
        for lies, cards in zip(held, (below[:tp], below[tp:]), strict=False):
            check_cards(cards, lies.at(Axis.TP), len(tensor.shape))
            assert {to_hex(card.get_facecolor()) for card in cards} == set(colours)


def check_cards(cards: list[Rectangle], place: object, num_dims: int) -> None:
    lefts, tops = ({round(value, 6) for value in values} for values in zip(*(c.get_xy() for c in cards), strict=True))
    hatched = {bool(card.get_hatch()) for card in cards}
    spread = getattr(place, "spread", None)
    if spread is Spread.SHARD:
        across = getattr(place, "dim", None) == num_dims
        assert (len(lefts), len(tops)) == ((len(cards), 1) if across else (1, len(cards)))
        assert hatched == {False}
    else:
        assert len(lefts) == len(tops) == len(cards)
        assert hatched == {spread is Spread.PARTIAL}


def test_a_residual_runs_beside_the_chain_and_what_comes_from_elsewhere_is_named() -> None:
    figure = picture("block")
    drawn(figure)
    assert "↓" not in said(figure)
    lines = [p.get_window_extent() for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert sum(line.width > figure.bbox.width / 2 for line in lines) == 2 * len(PICTURES["block"][1])
    words = said(picture("block with dropout")).split(" | ")
    assert words.count("↓ keys") == 3
    assert said(picture("row and its loss")).count("↓ target") == 1


def test_the_title_and_the_small_print() -> None:
    words = said(picture("column"))
    assert "column-parallel linears on 4 ranks" in words
    assert f"model {linears('column').name}, layer 1 of 0 to 3, tensor group of 4 ranks" in words
    assert "row-parallel linears on 4 ranks" in said(picture("row"))
    assert "sequence parallelism on 8 ranks" in said(picture("eight ranks"))
    assert "gradients are partial" in said(picture("sequence")) and "attn0.norm.w" in said(picture("sequence"))
    assert "gradients are partial" not in said(picture("block"))
    assert "mine" in said(layout(linears("row"), title="mine"))


@pytest.mark.parametrize(
    "model",
    [
        transformer(),
        models.transformer(tp=2, depth=8),
        linears("column"),
        linears("row"),
        models.mlp(width=64, depth=5, tp=4),
        replace(transformer(), repeated=()),
    ],
)
def test_without_layers_it_fits_a_slide(model: Model) -> None:
    figure = layout(model)
    assert figure.get_figheight() <= theme.WIDTH * 9 / 16
    words = said(figure)
    assert "all-reduce" in words
    assert all(item.name in words for item in model.layers[1] if isinstance(item, Segment))


def test_long_layers_are_cut_and_short_ones_joined() -> None:
    """Where a row begins again, the tensor that the last one ended with is drawn again."""
    words = said(picture("ends")).split(" | ")
    assert words.count("forward") == 3 and words.count("head.logits") == 2
    assert said(picture("column then row")).split(" | ").count("forward") == 1


def test_refusals() -> None:
    for model in (models.mlp(), models.transformer(), models.experts()):
        with pytest.raises(ValueError, match=r"exchanges nothing over a tensor group.*give a model of tp 2 or more"):
            layout(model)
    with pytest.raises(ValueError, match=r"layers 4, -1: model mlp\(.*\) has layers 0 to 3"):
        layout(linears("row"), [4, 1, -1])
    with pytest.raises(ValueError, match="layers none"):
        layout(linears("row"), [])
