"""`flambeau.Tensor`, for programs without PyTorch and NumPy."""

import numpy as np
import pytest

import flambeau

NAMES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("name", NAMES)
def test_arrays_come_and_go_with_their_elements(name):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    tensor = flambeau.Tensor(array)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (name, (2, 3), array.nbytes)
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.tolist() == array.tolist()
    np.testing.assert_array_equal(flambeau.Tensor(array.tolist(), name).numpy(), array)


def test_half_types_need_no_other_package():
    for name in ["bfloat16", "float16"]:
        tensor = flambeau.Tensor([[1.0, -2.5], [0.5, 3.0]], name)
        assert (tensor.dtype, tensor.tolist()) == (name, [[1.0, -2.5], [0.5, 3.0]])


def test_types_of_ml_dtypes_are_taken():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.0, 2.5]], ml_dtypes.bfloat16)
    tensor = flambeau.Tensor(array)
    assert (tensor.dtype, tensor.shape, tensor.tolist()) == ("bfloat16", (1, 2), [[1.0, 2.5]])
    assert tensor.numpy().dtype == array.dtype


def test_scalars_and_empty_tensors():
    assert flambeau.Tensor(3).tolist() == 3 and flambeau.Tensor(3).dtype == "int64"
    assert flambeau.Tensor(True).dtype == "bool"
    empty = flambeau.Tensor(np.zeros((2, 0, 3), np.float32))
    assert empty.tolist() == [[], []] and empty.numpy().shape == (2, 0, 3)
    assert flambeau.Tensor(np.float32(2.5).reshape(())).tolist() == 2.5
    with pytest.raises(TypeError):
        len(flambeau.Tensor(3))


def test_arrays_are_shared_not_copied():
    array = np.arange(4, dtype=np.float32)
    tensor = flambeau.Tensor(array)
    array[0] = 9
    assert tensor.tolist()[0] == 9.0
    view = tensor.numpy()
    assert view.ctypes.data == array.ctypes.data


def test_a_capsule_is_taken_once():
    tensor = flambeau.Tensor([1.0])
    for options in ({}, {"max_version": (1, 0)}, {"copy": True}):
        np.testing.assert_array_equal(np.from_dlpack(_Capsule(tensor.__dlpack__(**options))), [1.0])
    assert tensor.__dlpack_device__() == (1, 0)
    # This capsule is never consumed.
    tensor.__dlpack__()


class _Capsule:
    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_a_used_capsule_is_refused():
    capsule = flambeau.Tensor([1.0]).__dlpack__()
    assert flambeau.Tensor(_Capsule(capsule)).tolist() == [1.0]
    with pytest.raises(BufferError, match="fresh capsule"):
        flambeau.Tensor(_Capsule(capsule))


def test_unknown_types_are_named():
    with pytest.raises(ValueError, match="no element type is called float7"):
        flambeau.Tensor([1.0], "float7")
    with pytest.raises(flambeau.InputError, match="cannot become float8_e5m2"):
        flambeau.Tensor([1.0], "float8_e5m2")
    with pytest.raises(flambeau.InputError, match="elements of type"):
        flambeau.Tensor(np.array(["a"]))
    with pytest.raises(flambeau.InputError, match="bytes in the order of another machine"):
        flambeau.Tensor(np.zeros(2, ">f4"))


def test_the_repr_tells_shape_and_type():
    assert repr(flambeau.Tensor([[1.0, 2.0]])) == "Tensor(shape=[1, 2], dtype=float32)"
