"""Run programs/many_mismatches.py, which mixes up many pairs of calls, and count the outcome of each pair.

A job tries many cases, one after the other. If a case ends the job, another job continues with the next case.
"""

import json
import runpy
import signal
from collections import Counter
from itertools import product
from random import Random

from support.forked import Forked
from support.paths import PROGRAMS

CASES_PER_JOB = 100  # each leaves some communicators open, of which an MPI has about 2,000
CPU = 600.0  # seconds for each process of a job
MPICH_ENDS = "Fatal error in internal_"
CRASHES = (signal.SIGSEGV, signal.SIGABRT)
TIMEOUT = 30  # seconds for MESHCOMM_TIMEOUT


def cases(ranks):
    """Return (first call, second call, mode, other rank) for all pairs of calls that differ, shuffled.

    *ranks* is the number of ranks. The rank that makes other calls is drawn.
    """
    program_names, random = runpy.run_path(str(PROGRAMS / "mismatches.py")), Random(ranks)
    names = program_names["names"](ranks)
    pairs = [case for case in product(names, names, program_names["MODES"]) if case[0] != case[1]]
    return [(*case, str(random.randrange(ranks))) for case in random.sample(pairs, len(pairs))]


def is_loud(job):
    """Return whether *job* has ended with an error that says what happened.

    When messages of different calls are mixed up, MPICH may end the job by itself, and Open MPI may crash: that counts
    as loud, too.
    """
    words = "CollectiveMismatch", "different c", "ends the job", MPICH_ENDS
    return job.code != 0 and (any(word in job.text for word in words) or abs(job.code) % 128 in CRASHES)


class MixUps:
    """Tries *cases* in *folder* on *ranks* ranks; *launch* is the fixture. If *shared*, ranks share memory."""

    def __init__(self, launch, folder, ranks, cases, shared):
        self._launch, self._folder, self._ranks, self._cases = launch, folder, ranks, cases
        self._memory = {} if shared else {"MESHCOMM_SHARED_MEMORY": "0"}
        self.outcomes = Counter()
        self.faults = []
        """Texts on outcomes that must not happen."""
        self.at_timeout = []
        """The cases that only the timeout has ended."""
        self._tried_again = -1

    def run(self):
        """Try all cases, and return the number of cases by outcome."""
        (self._folder / "cases").write_text("".join(" ".join(case) + "\n" for case in self._cases))
        with Forked(self._folder, PROGRAMS / "many_mismatches.py") as forked:
            first_case = 0
            while first_case < len(self._cases):
                first_case = self._run_job(forked, first_case, min(first_case + CASES_PER_JOB, len(self._cases)))
        return self.outcomes

    def _run_job(self, forked, first_case, end):
        """Try the cases from *first_case* to *end* in one job, and return the first one that is still to be tried."""
        logs = [self._folder / f"rank-{rank}.log" for rank in range(self._ranks)]
        for log in logs:
            log.write_text("")
        (self._folder / "steps").write_bytes(bytes(8 * self._ranks))
        settings = {"cpu": CPU, "MESHCOMM_TIMEOUT": str(TIMEOUT), **self._memory}
        job = forked.launch(self._launch, self._ranks, self._folder, first_case, end, **settings)
        logs_read = [_read(log) for log in logs]
        unusable = False
        for number in range(first_case, end):
            notes = [notes_of_rank.get(number, {}) for notes_of_rank in logs_read]
            if not all("outcome" in note for note in notes):
                # Once this may be for what an earlier case has left, or for a busy machine.
                if self._tried_again != number:
                    self._tried_again = number
                    return number
                self._fault(number, "not ready", notes, job)
                return number + 1
            unusable |= any(note.get("over") for note in notes)
            if any(note["outcome"] == "ready" for note in notes):
                self._judge(number, notes, job)
                return number + 1
            self._judge(number, notes, None)
        if unusable and job.code == 0:
            self._fault(number, "status 0 though a mesh is unusable", notes, job)
        return end

    def _judge(self, number, notes, job):
        """Count the outcome of a case, from the *notes* of each rank, and from *job* if the job ended in this case."""
        if any(note.get("wrong") for note in notes):
            self._fault(number, "late: a call returned wrong data", notes, job)
        elif job is not None and not is_loud(job):
            self._fault(number, "an end without words", notes, job)
        elif job is not None and "longer than MESHCOMM_TIMEOUT" in job.text:
            self.outcomes["ended the job at the timeout"] += 1
            self.at_timeout.append(" ".join(self._cases[number]))
        elif job is not None:
            self.outcomes[f"ended the job with {_kind(job)}"] += 1
        elif all(note["outcome"] == "returned" for note in notes):
            self._fault(number, "silent", notes, job)
        else:
            kinds = {note["outcome"].partition(":")[0] for note in notes}
            if kinds - {"CollectiveMismatch", "returned"}:
                self._fault(number, "an error of MPI, as it is", notes, job)
            else:
                self.outcomes[f"raised {' and '.join(sorted(kinds))}"] += 1

    def _fault(self, number, fault, notes, job):
        self.outcomes[fault] += 1
        self.faults.append(f"{' '.join(self._cases[number])}: {fault}: {notes}\n{job or ''}")


def _kind(job):
    if abs(job.code) % 128 in CRASHES:
        return "a crash"
    if MPICH_ENDS in job.text:
        return "an error of MPICH"
    return "CollectiveMismatch" if "CollectiveMismatch" in job.text else "another error"


def _read(log):
    """Return the notes of a rank on each case, the latest ones."""
    notes = {}
    for line in log.read_text().splitlines():
        try:
            note = json.loads(line)
        except ValueError:  # the end of a rank that was killed
            continue
        notes[note["case"]] = notes.get(note["case"], {}) | note
    return notes
