"""Docstrings say first what is collective, and have examples that are right."""

import doctest
import inspect
from operator import attrgetter

import meshcomm as mc
from meshcomm.core.ranks.recording import Listener

COLLECTIVE = """
Checkpoints.restore Checkpoints.save Checkpoints.start_save Checkpoints.wanted DTensor.all DTensor.any DTensor.argmax
DTensor.argmin DTensor.argpartition DTensor.argsort DTensor.choose DTensor.clip DTensor.compress DTensor.cumprod
DTensor.cumsum DTensor.dot DTensor.flat DTensor.flatten DTensor.max DTensor.mean DTensor.min DTensor.nonzero
DTensor.partition
DTensor.prod DTensor.put DTensor.ravel DTensor.relayout DTensor.repeat DTensor.reshape DTensor.searchsorted
DTensor.sort DTensor.squeeze DTensor.std DTensor.sum DTensor.take DTensor.to_device DTensor.to_numpy
DTensor.tobytes DTensor.tofile DTensor.tolist DTensor.trace
DTensor.var Halo.reduce Halo.start_update Halo.update Halo.wait LayoutMap.distribute Mesh.close Plan.execute
RelayoutRequest.wait SaveRequest.wait Series Series.append Strategy.close
Strategy.experimental_assign_to_logical_device
Strategy.experimental_replicate_to_logical_devices Strategy.experimental_split_to_logical_devices Topology.from_comm
Variable.assign Variable.assign_add Variable.assign_sub Variable.to_numpy all_gather all_reduce all_to_all barrier
broadcast call_with_layout collective_permute concatenate copy_to_mesh create_mesh distribute drop_plans einsum
from_local gradients.all_gather_vjp gradients.all_reduce_vjp gradients.all_to_all_vjp gradients.broadcast_vjp
gradients.collective_permute_vjp gradients.einsum_vjp gradients.matmul_vjp gradients.matmul_vjp_of_left
gradients.matmul_vjp_of_right gradients.reduce_scatter_vjp gradients.relayout_like_vjp gradients.relayout_vjp
gradients.sum_vjp halo load machine_of map_overlap matmul migrate pack reduce_scatter relayout relayout_like reshape
save stack start_relayout start_save trace transpose update_halos
"""


def documented():
    """Return the docstrings of everything public: functions, methods and properties."""
    found = {}
    for name in mc.__all__:
        value = getattr(mc, name)
        if inspect.isclass(value):
            found[name] = inspect.getdoc(value)
            for member, attribute in members(value).items():
                if not member.startswith("_") and is_documented(attribute):
                    found[f"{name}.{member}"] = inspect.getdoc(getattr(value, member))
        elif callable(value):
            found[name] = inspect.getdoc(value)
    for name in dir(mc.gradients):
        if "_vjp" in name:
            found[f"gradients.{name}"] = inspect.getdoc(getattr(mc.gradients, name))
    return found


def members(value):
    """Return what a class has of its own, and from classes of meshcomm that are not public themselves."""
    ours = [base for base in value.__mro__ if base is value or base.__module__.startswith("meshcomm.")]
    return {name: attribute for base in ours for name, attribute in vars(base).items()}


def is_documented(attribute):
    return callable(attribute) or isinstance(attribute, property | classmethod | staticmethod)


HEARD = {f"Count.{name}" for name in vars(Listener) if not name.startswith("_") and callable(getattr(Listener, name))}
"""What a count hears from meshcomm. Programs do not call these methods, so they have no examples."""


def says_collective(doc):
    """Return whether the first paragraph of a docstring says that the function is collective."""
    return "Collective" in (doc or "").partition("\n\n")[0]


def test_everything_public_has_a_docstring():
    assert [name for name, doc in documented().items() if not doc] == []


def test_collective_functions_say_so_first_and_only_they():
    assert sorted(name for name, doc in documented().items() if says_collective(doc)) == sorted(COLLECTIVE.split())


def test_a_function_that_does_not_say_so_first_is_seen():
    assert says_collective("Return the sum. Collective over the mesh.\n\nMore.")
    assert not says_collective("Return the sum.\n\nIt is Collective.")
    assert not says_collective(None)


def is_called(name):
    """Return whether *name* of `documented` is a function or a method, and no class or property."""
    value = attrgetter(name)(mc)
    return callable(value) and not inspect.isclass(value)


def test_functions_and_methods_have_examples():
    """A property may have one; the first sentence often says all."""
    without = {name for name, doc in documented().items() if is_called(name) and ">>>" not in (doc or "")}
    assert without == HEARD


def test_what_is_called():
    names = ["relayout", "Mesh.shape", "Layout.replicated", "gradients.sum_vjp", "Mesh.size", "Mesh"]
    assert [name for name in names if is_called(name)] == names[:4]


def examples_that_pytest_passes_over():
    """Return the docstrings with examples of methods in public classes, by name.

    doctest takes a class from the module that its ``__module__`` names, and only methods that this file defines. A
    public class says that it is of ``meshcomm``, and another file has its methods: doctest runs them in neither.
    """
    return {
        f"{name}.{member}": inspect.getdoc(attribute)
        for name in mc.__all__
        if inspect.isclass(value := getattr(mc, name)) and value.__module__ == "meshcomm"
        for member, attribute in vars(value).items()
        if inspect.isroutine(attribute) and ">>>" in (attribute.__doc__ or "")
    }


def test_the_examples_of_methods():
    """They run with the public names, as those of public classes do."""
    runner, report, examples = doctest.DocTestRunner(), [], examples_that_pytest_passes_over()
    assert len(examples) > 100
    for name, doc in examples.items():
        runner.run(doctest.DocTestParser().get_doctest(doc, dict(vars(mc)), name, None, None), out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
