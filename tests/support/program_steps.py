"""The steps of random programs: each writes a line of the program, and a line that does the same to whole arrays.

A step does nothing if the program has no tensor, mesh or request that the step needs.
"""

import numpy as np

import meshcomm as mc
from support.random_cases import random_boundaries
from support.random_programs import bytes_of

MAX_TENSORS = 10


def is_number(tensor):
    """Return whether arithmetic is defined for a tensor."""
    return tensor.dtype.kind in "biufc" and tensor.dtype.isnative


def small(p):
    """Return the names of tensors with small integers only: their sums and products are exact, in any order."""

    def fits(name):
        array = p.model[name]
        if array.size == 0 or not is_number(array):
            return False
        numbers = array.astype(complex)
        return np.abs(numbers).max() < 200 and bool((np.round(numbers) == numbers).all())

    return [name for name in p.tensors if fits(name)]


def made(p, call, model=None):
    """Run *call*, and add the new tensor that it returns; for whole arrays run *model*, by default the same text."""
    name = p.new("t")
    p.do(f"{name} = {call}", f"{name} = {model or call}")
    return p.added(name)


# -- tensors ----------------------------------------------------------------------------------------------------------


def make(p):
    shape, dtype = p.random.choice(p.shapes), p.random.choice(p.dtypes)
    array_text = f"A({p.random.randrange(10**6)}, {shape}, {dtype!r})"
    method = p.random.choice(["distribute", "distribute", "root", "callback", "local", "cuts", "relayout"])
    layout = p.any_layout(shape, p.any_mesh(whole=method in ("root", "cuts")))
    mesh = layout[2:].partition(",")[0].rstrip(")")
    if method == "root":
        root = p.random.randrange(p.size)
        line = f"mc.distribute({array_text} if {mesh}.rank == {root} else None, {layout}, root={root})"
    elif method == "callback":
        line = f"mc.from_callback({shape}, {dtype!r}, {layout}, lambda s: {array_text}[s])"
    elif method == "local":
        block = f"B({array_text}, {layout}, rank)"
        line = f"mc.from_local({block} if {mesh}.rank is not None else A(0, (0,), {dtype!r}), {layout}, {shape})"
    elif method == "cuts":
        specs = random_cut_specs(p, mesh, shape)
        block = f"B({array_text}, L({mesh}, *{specs}), rank)"
        line = f"mc.from_local({block}, 'cuts', mesh={mesh}, sharding_specs={dims_of_specs(specs)})"
    else:
        line = f"mc.{'relayout' if method == 'relayout' else 'distribute'}({array_text}, {layout})"
    made(p, line, array_text)


def random_cut_specs(p, mesh, shape):
    """Return specs of a random layout on *mesh*, in which each sharded axis is cut at chosen boundaries."""
    layout = eval(p.any_layout(shape, mesh), p.names)
    return [
        mc.Cuts(names, random_boundaries(p.random, length, layout.num_shards(axis))) if names else ""
        for axis, (names, length) in enumerate(zip(map(tuple, layout.axes), shape, strict=True))
    ]


def dims_of_specs(specs):
    """Return the mesh dimensions in each of these *specs*, without the kind of cut."""
    return [tuple(spec) if spec else mc.UNSHARDED for spec in specs]


def fill(p):
    shape, dtype = p.random.choice(p.shapes), p.random.choice(["f8", "i4"])
    call = p.random.choice([f"zeros({shape}, {dtype!r}", f"ones({shape}, {dtype!r}", f"full({shape}, 7, {dtype!r}"])
    made(p, f"mc.{call}, {p.any_layout(shape)})", f"np.{call})")


def forget(p):
    if p.tensors:
        name = p.random.choice(p.tensors)
        p.forget(name)
        p.do(f"{name} = None" if p.random.random() < 0.8 else f"{name} = gc.collect()")


# -- relayouts --------------------------------------------------------------------------------------------------------


def another_layout(p, name):
    """Return the text of a layout for a tensor, often on its own mesh."""
    on_same_mesh = p.random.random() < 0.6
    return p.any_layout(p.names[name].shape, p.mesh_of(name) if on_same_mesh else None, match=on_same_mesh)


def relayout(p):
    name = p.any_tensor()
    if name is None:
        return
    result, layout = p.new("t"), another_layout(p, name)
    form = p.random.choice(["plain", "plain", "plain", "named", "scratch", "like", "loop", "plan"])
    tensor = p.names[name]
    line = f"{result} = mc.relayout({name}, {layout})"
    if form == "named":
        line = f"{result} = mc.relayout({name}, {layout}, 'a name')"
    elif form == "scratch":
        limit = p.random.choice([bytes_of(tensor), 2 * bytes_of(tensor) + 64, 2**16])
        line = f"{result} = mc.relayout({name}, {layout}, max_scratch_bytes={max(limit, 1024)})"
    elif form == "like":
        line = f"{result} = mc.relayout_like({name}, mc.zeros({tensor.shape}, 'i4', {layout.replace(mc.MATCH, '')}))"
    elif form == "loop":
        line = f"for _ in range({p.random.choice([3, 70])}): {line}"
    elif form == "plan":
        plan = p.new("p")
        p.do(f"{plan} = mc.plan_relayout({name}.shape, {name}.dtype, {name}.layout, {layout})")
        p.plans.append((plan, name))
        line = f"{result} = {plan}.execute({name})"
    p.do(line, f"{result} = {name}")
    p.added(result)


def out_for(p, name, layout):
    """Return the name of a tensor that a relayout of *name* to *layout* may overwrite: an existing or a new one."""
    tensor = p.names[name]
    target_layout = eval(layout, p.names)
    existing = p.any_tensor(
        lambda t: t is not tensor and (t.shape, t.dtype, t.layout) == (tensor.shape, tensor.dtype, target_layout)
    )
    if existing is not None and not p.is_read(existing):
        return existing
    out = p.new("t")
    p.do(f"{out} = mc.zeros({tensor.shape}, {name}.dtype, {layout})", f"{out} = np.zeros_like({name})")
    return p.added(out)


def relayout_into(p):
    name = p.any_tensor()
    if name is not None:
        layout = another_layout(p, name).replace(mc.MATCH, "")
        out = out_for(p, name, layout)
        p.do(f"{out} = mc.relayout({name}, {layout}, out={out})", f"{out} = {name}")


def relayout_many(p):
    if not p.tensors:
        return
    names = p.random.sample(p.tensors, p.random.randint(1, min(4, len(p.tensors))))
    layouts = [another_layout(p, name) for name in names]
    results = [p.new("t") for _ in names]
    targets, sources_text = f"{', '.join(results)},", f"{', '.join(names)},"
    form = p.random.choice(["list", "tuple", "dict", "out"])
    sources, layouts_text = f"[{sources_text}]", f"[{', '.join(layouts)}]"
    if form == "dict":
        sources = f"dict(enumerate({sources}))"
        p.do(
            f"{targets} = mc.relayout({sources}, dict(enumerate({layouts_text}))).values()",
            f"{targets} = {sources_text}",
        )
    elif form == "out":
        layouts = [layout.replace(mc.MATCH, "") for layout in layouts]
        outs = [p.new("t") for _ in names]
        for out, name, layout in zip(outs, names, layouts, strict=True):
            p.do(f"{out} = mc.empty({name}.shape, {name}.dtype, {layout})")
        out_texts = [out if p.random.random() < 0.7 else "None" for out in outs]
        p.do(
            f"{targets} = mc.relayout({sources}, [{', '.join(layouts)}], out=[{', '.join(out_texts)}])",
            f"{targets} = {sources_text}",
        )
    else:
        sources = f"({sources_text})" if form == "tuple" else sources
        limit = p.random.choice(["", ", max_scratch_bytes=65536"])
        p.do(f"{targets} = mc.relayout({sources}, {layouts_text}{limit})", f"{targets} = {sources_text}")
    for name in results:
        p.added(name)


def execute(p):
    """Execute an earlier plan again, for a tensor of its shape, dtype and layout."""
    if not p.plans:
        return
    plan, _ = p.random.choice(p.plans)
    planned = p.names[plan]
    name = p.any_tensor(lambda t: (t.shape, t.dtype, t.layout) == (planned.shape, planned.dtype, planned.source))
    if name is not None and p.names[name].mesh is planned.source.mesh:
        made(p, f"{plan}.execute({name})", name)


def start(p):
    name = p.any_tensor()
    if name is None or len(p.requests) > 5:
        return
    request, layout, out = p.new("r"), another_layout(p, name), None
    if p.random.random() < 0.3:
        layout = layout.replace(mc.MATCH, "")
        out = out_for(p, name, layout)
    p.requests[request] = name, out
    if out is not None:
        p.forget(out)
        p.do(f"{request} = mc.start_relayout({name}, {layout}, out={out})", f"{request} = {name}")
    else:
        p.do(f"{request} = mc.start_relayout({name}, {layout})", f"{request} = {name}")


def wait(p):
    if not p.requests:
        return
    requests = p.random.sample(list(p.requests), p.random.randint(1, len(p.requests)))
    results = [p.requests.pop(request)[1] or p.new("t") for request in requests]
    p.do(
        f"{', '.join(results)}, = waited({p.random.randrange(1000)} + rank, [{', '.join(requests)}])",
        f"{', '.join(results)}, = {', '.join(requests)},",
    )
    for name in results:
        if any(p.names[mesh] is p.names[name].mesh for mesh in p.meshes):
            p.added(name)
        else:  # its mesh was closed in the meantime
            p.forget(name)


# -- arithmetic -------------------------------------------------------------------------------------------------------


def operand(p, name):
    """Return the text of an operand to combine with a tensor: a tensor of its mesh, an array or a number."""
    tensor, candidates = p.names[name], []
    for other_name in small(p):
        other_tensor = p.names[other_name]
        if (
            other_tensor.mesh is tensor.mesh
            and other_tensor.shape[-tensor.ndim :] == tensor.shape[-other_tensor.ndim :]
        ):
            candidates.append(other_name)
    kind = p.random.random()
    if kind < 0.7 and candidates:
        return p.random.choice(candidates)
    if kind < 0.85:
        return f"A({p.random.randrange(1000)}, {tensor.shape}, 'i4')"
    return str(p.random.randint(0, 3))


def combine(p):
    names = small(p)
    if not names:
        return
    name = p.random.choice(names)
    other_operand = operand(p, name)
    if p.names[name].dtype.kind == "b":
        call = p.random.choice([f"{name} | {name}", f"np.where({name}, {other_operand}, {name})", f"~{name}"])
    else:
        operator, call = p.random.choice("+-*"), p.random.random()
        if call < 0.6:
            call = f"{name} {operator} {other_operand}"
        else:
            calls = [
                f"-{name}",
                f"{name} == {other_operand}",
                f"np.maximum({name}, {name})",
                f"np.where({name}, {other_operand}, 1)",
            ]
            call = p.random.choice(calls)
        if p.names[name].dtype.kind == "c" or (p.names[name].dtype.kind == "u" and operator == "-"):
            call = f"{name} * {name}"
    made(p, call, f"np.asarray({call})")


def combine_in_place(p):
    names = [name for name in small(p) if p.names[name].dtype.kind in "if" and not p.is_read(name)]
    if not names:
        return
    name = p.random.choice(names)
    candidates = [other_name for other_name in names if p.names[other_name].mesh is p.names[name].mesh]
    candidates = [candidate for candidate in candidates if p.names[candidate].shape == p.names[name].shape] or [name]
    a, b = p.random.choice(candidates), p.random.choice(candidates)
    casts = all(np.can_cast(p.names[other_name].dtype, p.names[name].dtype, "same_kind") for other_name in (a, b))
    if not casts:
        return
    if p.random.random() < 0.5:
        p.do(f"{name} += {b}", f"{name} = ({name} + {b}).astype({name}.dtype)")
    else:
        p.do(f"np.subtract({a}, {b}, out={name})", f"{name} = ({a} - {b}).astype({name}.dtype)")


def reduce(p):
    names = small(p)
    if not names:
        return
    name = p.random.choice(names)
    ndim = p.names[name].ndim
    axis = p.random.choice([None, *range(ndim), tuple(p.random.sample(range(ndim), p.random.randint(0, ndim)))])
    functions = ["sum", "max", "min"] + ["mean"] * (p.names[name].dtype.kind in "if")
    function = p.random.choice(functions if p.names[name].dtype.kind != "c" else ["sum"])
    call = f"np.{function}({name}, axis={axis}, keepdims={p.random.random() < 0.3})"
    made(p, call, f"np.asarray({call})")


def multiply(p):
    names = [name for name in small(p) if p.names[name].ndim in (1, 2) and p.names[name].dtype.kind in "ifc"]
    if not names:
        return
    a = p.random.choice(names)
    names = [b for b in names if p.names[b].mesh is p.names[a].mesh and p.names[b].size <= 10_000]
    b = next((b for b in names if p.names[b].shape[0] == p.names[a].shape[-1]), None)
    if b is None and p.names[a].ndim == 2 and p.names[a].size <= 10_000:
        made(p, f"{a} @ {a}.T")
    elif b is not None and p.names[a].size <= 10_000:
        made(p, f"np.matmul({a}, {b})", f"np.asarray(np.matmul({a}, {b}))")


def copy(p):
    name = p.any_tensor()
    if name is not None:
        made(p, p.random.choice([f"np.transpose({name}).copy()", f"{name}.copy()"]))


# -- arrays -----------------------------------------------------------------------------------------------------------


def to_numpy(p):
    name, new_name = p.any_tensor(), p.new("x")
    if name is None:
        return
    mesh = p.mesh_of(name)
    root, condition = "", "is not None"
    if p.random.random() < 0.5:
        root = p.random.randrange(p.names[mesh].size)
        root, condition = f"root={root}", f"== {root}"
    p.do(
        f"{new_name} = {name}.to_numpy({root})",
        f"{new_name} = {name} if device_of(rank, {mesh!r}) {condition} else None",
    )


def collective(p):
    ranks = p.random.sample(range(p.size), p.size)
    count = p.random.choice([n for n in range(1, p.size + 1) if p.size % n == 0])
    rows = [ranks[i : i + count] for i in range(0, p.size, count)]
    length, name, seed = p.random.choice([1, 2, 7, 3000]), p.new("x"), p.random.randrange(10**6)
    axis, dtype = p.random.randrange(2), p.random.choice(["f8", "i4", "u1"])
    shape = tuple(length * count if a == axis else count for a in range(2))
    call = p.random.choice(
        [
            f"all_gather(%s, {rows}, {axis})",
            f"all_to_all(%s, {rows}, {1 - axis}, {axis}, {count})",
            f"all_reduce(%s, {rows}, {p.random.choice(['sum', 'max', 'min', 'prod'])!r})",
            f"reduce_scatter(%s, {rows}, {axis}, 'sum')",
            f"broadcast(%s, {rows}, {p.random.randrange(count)})",
            f"collective_permute(%s, {list(zip(range(p.size), ranks, strict=True))[: p.random.randint(0, p.size)]})",
        ]
    )
    own_array = f"A({seed} + rank, {shape}, {dtype!r})"
    all_arrays = f"[A({seed} + r, {shape}, {dtype!r}) for r in range({p.size})]"
    p.do(f"{name} = mc.{call[:-1] % own_array}, comm=comm)", f"{name} = reference.{call % all_arrays}[rank]")


# -- variables --------------------------------------------------------------------------------------------------------


def variable(p):
    name = p.any_tensor(is_number)
    if name is not None:
        new_name = p.new("v")
        line = f"np.ones({p.names[name].shape}), {name}.layout" if p.random.random() < 0.2 else name
        p.do(
            f"{new_name} = mc.DVariable({line})",
            f"{new_name} = {line.partition('), ')[0] + ')' if '(' in line else name}",
        )
        p.variables.append(new_name)


def assign(p):
    if not p.variables:
        return
    variable = p.random.choice(p.variables)
    stored = p.names[variable]
    name = p.any_tensor(lambda t: t.shape == stored.shape and np.can_cast(t.dtype, stored.dtype, "same_kind"))
    if name is None or not is_number(p.names[name]):
        return
    if p.random.random() < 0.6:
        p.do(f"{variable}.assign({name})", f"{variable} = {name}.astype({variable}.dtype)")
    elif stored.dtype.kind in "if" and is_small(p, variable) and name in small(p):
        p.do(f"{variable}.assign_add({name})", f"{variable} = ({variable} + {name}).astype({variable}.dtype)")


def is_small(p, name):
    return p.model[name].size > 0 and np.abs(p.model[name]).max() < 10**4


def read_variable(p):
    if p.variables:
        variable = p.random.choice(p.variables)
        made(p, f"mc.relayout({variable}, {p.any_layout(p.names[variable].shape)})", variable)


# -- failures, ends and threads ---------------------------------------------------------------------------------------


def fail(p):
    """Make a wrong call: all ranks raise the same class, and the mesh stays usable."""
    name = p.any_tensor()
    if name is None:
        return
    tensor, layout = p.names[name], another_layout(p, name).replace(mc.MATCH, "")
    wrong_layout = p.any_layout((*tensor.shape, 3))
    longer, dtype = (*tensor.shape[:-1], tensor.shape[-1] + 1) if tensor.ndim else (3,), repr(tensor.dtype.str)
    bad_calls = [
        ("LayoutError", f"mc.relayout({name}, {wrong_layout})"),
        ("LayoutError", f"mc.start_relayout({name}, {wrong_layout})"),
        ("LayoutError", f"mc.relayout({name}, {layout}, out=5)"),
        ("LayoutError", f"mc.relayout([{name}, {name}], [{layout}])"),
        ("ShapeError", f"mc.relayout({name}, {layout}, max_scratch_bytes=-1)"),
        ("AxisError", f"np.sum({name}, axis=9)"),
        ("MeshError", f"{name}.to_numpy(root=99)"),
        ("GroupError", "mc.all_gather([1.0], [[0, 0]], 0, comm=comm)"),
        ("ShapeError", "mc.all_gather([1.0], None, 3, comm=comm)"),
        ("GroupError", f"mc.all_to_all([1.0], None, 0, 0, {p.size + 1}, comm=comm)"),
        ("DTypeError", "mc.all_reduce([1.0], None, 'median', comm=comm)"),
    ]
    if tensor.ndim:
        out = f"mc.empty({longer}, {dtype}, {layout})"
        bad_calls += [
            ("ShapeError", f"mc.relayout({name}, {layout}, out={out})"),
            ("ShapeError", f"mc.start_relayout({name}, {layout}, out={out})"),
            ("ShapeError", f"mc.relayout([{name}], [{layout}], out=[{out}])"),
        ]
    if tensor.dtype != "f2":
        out = f"mc.empty({tensor.shape}, 'f2', {layout})"
        bad_calls += [("DTypeError", f"mc.relayout({name}, {layout}, out={out})")]
    arguments = f"{name}, {name}.layout, out={name}"
    bad_calls += [("LayoutError", f"mc.{call}({arguments})") for call in ("relayout", "start_relayout")]
    if p.closed:
        closed, ndim = p.random.choice(p.closed), tensor.ndim
        bad_calls += 3 * [
            ("MeshError", f"mc.relayout({name}, L({closed}, *{[''] * ndim}))"),
            ("MeshError", f"mc.barrier({closed})"),
        ]
    for variable in p.variables[:1]:
        shape = (*p.names[variable].shape, 2)
        bad_calls += [("ShapeError", f"{variable}.assign(np.ones({shape}))")]
    kind, call = p.random.choice(bad_calls)
    p.do(f"fails(mc.{kind}, lambda: {call})")


def forget_mesh(p, mesh):
    p.meshes.remove(mesh)
    for name in [*p.tensors, *p.variables]:
        if p.names[name].mesh is p.names[mesh]:
            p.forget(name)


def close(p):
    """Close a mesh; its tensors cannot be used any more."""
    if not p.meshes:
        return
    mesh = p.random.choice(p.meshes)
    forget_mesh(p, mesh)
    p.closed.append(mesh)
    p.plans = [(plan, name) for plan, name in p.plans if p.names[plan].source.mesh is not p.names[mesh]]
    p.plans = [(plan, name) for plan, name in p.plans if p.names[plan].target.mesh is not p.names[mesh]]
    p.do(f"{mesh}.close()")


def between(p):
    """Make a call that may come between any other calls."""
    mesh, late = p.any_mesh(), f"late(rank == {p.random.randrange(p.size)})"
    p.do(p.random.choice([f"mc.drop_plans({mesh})", f"mc.barrier({mesh})", late]))


def thread(p):
    if p.comm is None:
        return
    if p.threads:
        p.do(f"{p.threads.pop()}.end()")
    else:
        p.threads.append(p.new("b"))
        p.do(f"{p.threads[-1]} = Beside(comm, {p.random.randrange(1000)})")


STEPS = {
    make: 6, fill: 1, forget: 2, relayout: 14, relayout_into: 6, relayout_many: 5, execute: 3, start: 6, wait: 5,
    combine: 6, combine_in_place: 4, reduce: 5, multiply: 3, copy: 1, to_numpy: 3, collective: 5, variable: 2,
    assign: 4, read_variable: 2, fail: 5, close: 1, between: 3, thread: 0.7,
}  # fmt: skip


def random_step(p):
    """Make and run one step, or none."""
    if len(p.tensors) > MAX_TENSORS:
        forget(p)
    (step,) = p.random.choices(list(STEPS), list(STEPS.values()))
    step(p)


def end_program(p):
    """Wait for all requests and threads, and close some meshes; the others stay open while the next program runs."""
    while p.requests:
        wait(p)
    while p.threads:
        thread(p)
    for mesh in list(p.meshes):
        if p.random.random() < 0.5:
            p.do(f"{mesh}.close()")
            forget_mesh(p, mesh)
