"""Index arrays that other libraries got wrong: the programs of Heat's issues, with NumPy's values, in many layouts."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import check, on

U = mc.UNSHARDED
LAYOUTS = ["x", U, mc.Cyclic("x", 2)]


def swap_of_rows(tensor):
    """heat#918: a list along the axis that is cut."""
    t, x = tensor(np.arange(3))
    t[[0, 1]], x[[0, 1]] = t[[1, 0]], x[[1, 0]]
    check(t, [1, 0, 2])
    return t, x


def elements_where_a_mask_is_true(tensor):
    """heat#843: three arrays of length 100, one of them a mask, as indices of an assignment."""
    number = np.arange(100)
    (i, _), (x, _), (y, _) = (tensor(each) for each in (number % 7 < 3, number // 10, number % 10))
    t, a = tensor(np.zeros((10, 10)))
    t[x[i], y[i]] = 1
    a[(number // 10)[number % 7 < 3], (number % 10)[number % 7 < 3]] = 1
    t[x, y] += 2
    a += 2
    t[x, y, None] = t[x, y, None] * 2
    return t, a * 2


def vector_by_matrix(tensor):
    """heat#1857: both are cut."""
    vector, v = tensor(np.array([0, 10, 20, 30, 40, 50]))
    matrix, m = tensor(np.array([[1, 2], [2, 3], [3, 4]]))
    check(vector[matrix], [[10, 20], [20, 30], [30, 40]])
    return vector[matrix], v[m]


def mean_into_one_row(tensor):
    """heat#566: the row of a tensor is cut along another of its axes than the tensor."""
    t, x = tensor(np.zeros((3, 2, 4, 5)), axis=3)
    for number, days in enumerate((31, 28, 31)):
        month, m = tensor(np.arange(days * 40.0).reshape(days, 2, 4, 5), axis=3)
        t[number], x[number] = month.sum(axis=0), m.sum(axis=0)
    return t, x


def order_of_the_index(tensor):
    """heat#703: the result has the order of the index for any number of ranks."""
    t, x = tensor(np.array([0, 1]))
    index, plain = tensor(np.array([0, 1, 0, 1]))
    return t[index], x[plain]


def one_element_of_a_mask(tensor):
    """heat#2135, heat#2136: a mask with one true element."""
    t, x = tensor(np.arange(12).reshape(4, 3))
    m, mask = tensor(x == 1)
    check(t[m], [1])
    return t[m], x[mask]


def mask_and_integer(tensor):
    t, x = tensor(np.arange(12).reshape(4, 3))
    m, mask = tensor(np.array([True, False, True, True]))
    t[m, 1] = -t[m, 2]
    x[mask, 1] = -x[mask, 2]
    check(t[m, 1], x[mask, 1])
    return t, x


def backwards(tensor):
    """Negative steps, alone and beside index arrays."""
    t, x = tensor(np.arange(60).reshape(5, 4, 3))
    check(t[::-1, [0, 2]], x[::-1, [0, 2]])
    check(t[[3, 1], ::-2, 0], x[[3, 1], ::-2, 0])
    t[::-2, [1, 1, 0]] = t[::2, [2, 3, 3]]
    x[::-2, [1, 1, 0]] = x[::2, [2, 3, 3]]
    return t, x


PROGRAMS = [
    swap_of_rows,
    elements_where_a_mask_is_true,
    vector_by_matrix,
    mean_into_one_row,
    order_of_the_index,
    one_element_of_a_mask,
    mask_and_integer,
    backwards,
]


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("spec", LAYOUTS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_issues(program, spec, ranks):
    def on_rank():
        mesh = mc.create_mesh([("x", ranks)])

        def tensor(array, axis=0):
            specs = [spec if each == axis else U for each in range(array.ndim)]
            return mc.distribute(array, mc.Layout(specs, mesh)), array.copy()

        check(*program(tensor))

    on(ranks, on_rank)
