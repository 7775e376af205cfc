"""The bucket plan covers every legal request, in an order that makes an instance ready soon."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.errors import DeclarationError
from warmpool.model import Dim, Method, Model, Tensor
from warmpool.publishing.buckets import BUCKETS_MAX, plan, plan_all

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)


def model_of(*dims: Dim) -> Model:
    return Model(name="toy", methods={"predict": lambda params, x: x}, inputs={"x": Tensor("float32", dims)})


@st.composite
def models(draw: st.DrawFn) -> Model:
    rows, seq, width = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = Dim("batch", max=rows[-1] * draw(st.integers(1, 3)), sizes=rows, batch=True)
    others = [Dim("seq", max=seq[-1], sizes=seq), Dim("width", max=width[-1], sizes=width)]
    return model_of(batch, *others[: draw(st.integers(0, 2))])


@given(models(), st.data())
def test_every_legal_request_fits_a_bucket_once_its_rows_are_split(model: Model, data: st.DataObject) -> None:
    dims = model.method_dims("predict")
    need = {dim.name: data.draw(st.integers(1, dim.sizes[-1])) for dim in dims}
    assert any(all(bucket.sizes[name] >= size for name, size in need.items()) for bucket in plan(model, "predict"))


@given(models(), st.data())
def test_the_minimum_set_alone_answers_every_row(model: Model, data: st.DataObject) -> None:
    dims = model.method_dims("predict")
    (minimum,) = [bucket for bucket in plan(model, "predict") if bucket.minimum]
    row = {dim.name: 1 if dim.batch else data.draw(st.integers(1, dim.max)) for dim in dims}
    assert all(minimum.sizes[name] >= size for name, size in row.items())


@given(models())
def test_the_plan_is_the_product_of_the_sizes_each_once(model: Model) -> None:
    dims = model.method_dims("predict")
    planned = [tuple(bucket.sizes.values()) for bucket in plan(model, "predict")]
    assert sorted(planned) == sorted(itertools.product(*(dim.sizes for dim in dims)))


@given(models())
def test_the_minimum_comes_first_and_the_others_grow(model: Model) -> None:
    first, *others = plan(model, "predict")
    assert first.minimum
    assert not any(bucket.minimum for bucket in others)
    elements = [math.prod(bucket.sizes.values()) for bucket in others]
    assert elements == sorted(elements)


@given(models())
def test_the_ladder_is_the_minimum_and_the_largest(model: Model) -> None:
    largest = {dim.name: dim.sizes[-1] for dim in model.method_dims("predict")}
    ladder = [bucket for bucket in plan(model, "predict") if bucket.ladder]
    assert {bucket.minimum or bucket.sizes == largest for bucket in ladder} == {True}
    assert largest in [bucket.sizes for bucket in ladder]
    assert any(bucket.minimum for bucket in ladder)


def test_a_method_without_dimensions_has_one_bucket() -> None:
    (bucket,) = plan(model_of(), "predict")
    assert (bucket.sizes, bucket.minimum, bucket.ladder) == ({}, True, True)


def test_every_minimum_set_comes_before_any_other_bucket() -> None:
    batch = Dim("batch", max=8, sizes=(1, 8), batch=True)
    small, large = Tensor("float32", (batch,)), Tensor("float32", (batch, Dim("seq", max=512, sizes=(512,))))
    other = Method(lambda params, y: y, inputs={"y": large})
    order = plan_all(Model(name="toy", methods={"small": lambda params, x: x, "large": other}, inputs={"x": small}))
    assert [(method, bucket.sizes["batch"]) for method, bucket in order[:2]] == [("small", 1), ("large", 1)]


def test_too_many_buckets_are_refused_with_what_makes_them_many() -> None:
    dims = [Dim(name, max=2**11) for name in ("height", "width", "depth")]
    with pytest.raises(DeclarationError) as caught:
        plan(model_of(*dims), "predict")
    assert "model 'toy', method 'predict': 12 of 'height' * 12 of 'width' * 12 of 'depth' sizes make 1728" in str(
        caught.value
    )
    assert f"at most {BUCKETS_MAX} are allowed: give the dimensions fewer sizes" in str(caught.value)
