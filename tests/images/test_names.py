"""Names: a sequence of strings that is no list of them."""

import os
import pickle
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dissensus.images import Names

TEXTS = st.lists(st.text(st.characters(), max_size=9))  # surrogates included


@given(texts=TEXTS)
def test_as_a_list(texts):
    names = Names.of(iter(texts))
    assert names == texts
    assert tuple(texts) == names
    assert names == Names.of(texts)
    assert len(names) == len(texts)
    assert [names[i] for i in range(-len(texts), len(texts))] == texts + texts
    assert [text for chunk in names.chunks() for text in chunk] == texts
    assert names[1:-1] == texts[1:-1]
    assert names[::-2] == texts[::-2]
    assert pickle.loads(pickle.dumps(names)) == texts
    assert names.take(names.argsort()) == sorted(texts)
    assert Names.joined([("a/", names), ("b/", names)]) == [f"{place}/{text}" for place in "ab" for text in texts]
    assert names != [*texts, "x"]
    assert (names == [text + "x" for text in texts]) == (not texts)
    for text in texts:
        assert text in names
        assert names.index(text) == texts.index(text)


@given(texts=TEXTS.filter(bool), data=st.data())
def test_take(texts, data):
    index = data.draw(st.lists(st.integers(-len(texts), len(texts) - 1)))
    names = Names.of(texts).take(index)
    assert names == [texts[i] for i in index]
    assert pickle.loads(pickle.dumps(names[1:])) == list(names)[1:]


def test_what_is_out_of_range():
    names = Names.of(["a", "b"])
    for i in (2, -3):
        with pytest.raises(IndexError, match=r"numbered 0\.\.1"):
            names[i]
        with pytest.raises(IndexError, match=r"numbered 0\.\.1"):
            names.take([0, i])
    assert names != "ab"
    assert names != 3
    assert repr(names) == "Names(2: 'a', 'b')"
    assert repr(Names.of("abcd")) == "Names(4: 'a', 'b', 'c', ...)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(names)


def test_names_that_are_not_utf8():
    name = os.fsdecode(b"caf\xe9.png")
    assert list(pickle.loads(pickle.dumps(Names.of([name, "café.png"])))) == [name, "café.png"]


def test_a_name_costs_its_bytes_and_eight_more():
    count = 150_000  # more than are read at once
    tracemalloc.start()
    names = Names.of(f"class-{i % 100:03}/image-{i:08}.jpg" for i in range(count))
    held, peak = tracemalloc.get_traced_memory()
    length = len(names[0]) + 8
    assert held < count * length * 1.3  # buffers grow ahead
    tracemalloc.reset_peak()
    assert sum(map(len, names)) == count * len(names[0])  # iterating keeps no strings
    assert tracemalloc.get_traced_memory()[1] - held < count * sys.getsizeof(names[0])
    tracemalloc.stop()
    assert peak < count * length * 2.5
    assert len(pickle.dumps(names)) < count * length * 1.3
    assert len(pickle.dumps(names[:10])) < 2000  # not the whole buffer
    assert len(pickle.dumps(names.take(np.arange(10)))) < 2000
