# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
# cython: auto_pickle=False
"""Python's buffers of a class, which it has while a function says what is in them.

An object that has no buffers must not seem to have them, as ``bytes(x)`` and NumPy ask for them first. So the class
does not have them from the beginning. Before Python 3.12, they can be given to a class in C only.
"""

from cpython.buffer cimport PyObject_GetBuffer

cdef extern from *:
    """
    #define set_get_buffer(kind, get) (((PyTypeObject *)(kind))->tp_as_buffer->bf_getbuffer = (getbufferproc)(get))
    #define have_none(view) ((view)->obj = NULL)
    """
    void set_get_buffer(object, void *)
    void have_none(Py_buffer *)

cdef object _array_of = None


cdef int _get_buffer(object x, Py_buffer *view, int flags) except -1:
    have_none(view)  # if there is an error
    return PyObject_GetBuffer(_array_of(x), view, flags)


def set_buffers(type kind, array_of):
    """Let objects of a class of Python have buffers: of the array that *array_of* returns; none if it is None."""
    global _array_of
    _array_of = array_of
    set_get_buffer(kind, NULL if array_of is None else <void *>_get_buffer)
