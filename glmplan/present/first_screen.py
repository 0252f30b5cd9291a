"""The first screen of `glmplan fit`: at most 30 lines for a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmplan.io.machines.resolve import over_all_sockets
from glmplan.planner.capacity import experts_on_host, stage_ranks
from glmplan.planner.evidence import EVIDENCE
from glmplan.planner.plan import LEAST_GAIN, AnswerRecord, UserRow, Warn, best_changes, gain_words
from glmplan.planner.ranking import Narrowing, completed_words, narrowing_words, shown_users
from glmplan.present.answer_text import (
    NO_COPIES,
    change_numbers,
    change_words,
    command_lines,
    context_words,
    fit_sections,
    fit_text,
    gpus_words,
    host_words,
    launch_lines,
    lengths_words,
    missing_words,
    nearest_change,
    nearest_words,
    run_rows,
    safe_words,
    title_words,
)
from glmplan.present.text import LEAST_WIDTH, LIMITS, VERDICTS, WIDTH, count_of, span, spans, time_span, wrapped
from glmplan.units import GIB, number

__all__ = ["MOST_LINES", "first_screen"]

#: maximum lines of the screen: a terminal of 32 lines shows it with the command above and the prompt below [-]
MOST_LINES = 30
#: width of a label with its indent and space [-]
_LABEL = 16
#: ANSI colours of a verdict, the limit and an error
_VERDICT_COLOURS = {"fits": 32, "tight": 33, "does_not_fit": 31, "unknown": 33}
_LIMIT_COLOUR, _ERROR_COLOUR = 33, 31
#: severities of warnings to mend before the engine starts, and of paths that only cost speed
_FIRST, _SLOWER = ("danger", "error"), ("fallback", "slow")
_COUNTED = {
    "fallback": ("performance fallback", ""), "slow": ("performance fallback", ""), "warning": ("warning", ""),
    "unknown": ("open question", ""), "note": ("note", ""), "memory": ("memory limitation", ""),
    "quality": ("quality limitation", ""), "danger": ("more danger", ""), "error": ("more error", ""),
}  # fmt: skip
#: minimum lines of each part: of a text, of each entry of a list (`error`), or entries (`errors`). The evidence is on
#: every screen, because measured and extrapolated numbers look the same [-]
_LEAST = {
    "title": 1, "one": 1, "traffic": 1, "verdict": 2, "limit": 1, "reason": 1, "nearest": 2, "assumed": 1, "users": 1,
    "memory": 1, "basis": 1, "errors": 1, "error": 1, "changes": 1, "change": 1, "note": 0, "asks": 1, "gaps": 0,
    "measure": 1, "power": 0, "cache": 0,
}  # fmt: skip
#: how the remaining lines are given to parts, the most useful first
_MORE = (
    ("power", 1), ("cache", 1),
    ("one", 2), ("verdict", 3), ("traffic", 2), ("errors", 3), ("changes", 3), ("memory", 2), ("change", 2),
    ("traffic", 3), ("assumed", 2), ("error", 2), ("note", 2), ("asks", 2), ("nearest", 3), ("limit", 2), ("users", 2),
    ("reason", 3), ("title", 2), ("basis", 1), ("assumed", 3), ("asks", 3), ("measure", 2), ("gaps", 1), ("basis", 2),
    ("error", 3), ("note", 3), ("assumed", 5),
)  # fmt: skip


def first_screen(answer: AnswerRecord, width: int = WIDTH, *, colour: bool = False) -> str:
    """Return the first screen of an answer: at most 30 lines.

    Long texts are cut with …, except the launch command. `width` is at least 60 columns. `colour` adds terminal colours
    to verdict, limit and errors.

    Examples
    --------
    >>> from glmplan.planner import fit_answer
    >>> from glmplan.request.plan import PlanRequest
    >>> lines = first_screen(fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm"))).splitlines()
    >>> lines[2].split()[0], len(lines) <= 30
    ('FITS', True)
    """
    width = max(width, LEAST_WIDTH)
    sections = fit_sections(answer, width)
    whole = len(fit_text(answer, width).splitlines())
    rest = f"--full: {whole} lines; --section {'|'.join(sections)}"

    def lines(budget: dict[str, int]) -> list[str]:
        return _Screen(answer, width, budget, rest, colour).lines()

    budget = _LEAST | dict(_MORE)
    screen = lines(budget)
    if len(screen) > MOST_LINES:
        budget, screen = _LEAST, lines(_LEAST)
        for name, most in _MORE:
            longer = lines(budget | {name: most})
            if len(longer) <= MOST_LINES:
                budget, screen = budget | {name: most}, longer
    return "\n".join(screen) + "\n"


@dataclass(frozen=True, slots=True)
class _Screen:
    """The screen; `budget` has the lines, or entries, of each part."""

    answer: AnswerRecord
    width: int
    budget: dict[str, int]
    rest: str
    colour: bool

    def lines(self) -> list[str]:
        parts = (self._verdict, self._numbers, self._before, self._changes, self._start, self._next)
        written = [found for part in parts if (found := list(part()))]
        lines = written[0]
        for one in written[1:]:
            lines += [""] * self.budget["gaps"] + one
        return lines

    def _cut(self, text: str, most: int, first: str = "  ", later: str = "    ") -> list[str]:
        """Return a text in at most `most` lines."""
        lines = list(wrapped(text, self.width, first, later))
        if len(lines) <= most:
            return lines
        last = lines[most - 1]
        if len(last) + 2 > self.width:
            last = last[: self.width - 2].rsplit(" ", 1)[0]
        return [*lines[: most - 1], last.rstrip(" ,;:") + " …"]

    def _row(self, label: str, text: str, most: int = 2) -> list[str]:
        return self._cut(f"{label:{_LABEL - 2}}{text}", most, "  ", " " * _LABEL)

    def _paint(self, line: str, word: str, code: int) -> str:
        return line.replace(word, f"\033[1;{code}m{word}\033[0m", 1) if self.colour else line

    def _verdict(self) -> Iterator[str]:
        answer = self.answer
        yield from self._cut(title_words(answer), self.budget["title"], "", "  ")
        yield ""
        word = VERDICTS[answer.verdict]
        headline = answer.headline.partition(": ")[2] if answer.verdict != "fits" else self._where()
        blocked = answer.holding is not None and answer.holding.terms.blocked is not None
        headline = answer.headline if blocked else headline
        first, *more = self._cut(f"{word}  {headline}", self.budget["verdict"], "", " " * (len(word) + 2))
        yield self._paint(first, word, _VERDICT_COLOURS[answer.verdict])
        yield from more
        yield from self._row("answer", answer.reply.words, 1)
        if answer.safe is not None:
            limit = next(one for one in answer.safe.limits if one.name == answer.safe.limit)
            name = LIMITS[limit.name]
            first, *more = self._row("limit", f"{name}: {limit.words}", self.budget["limit"])
            yield self._paint(first, name, _LIMIT_COLOUR)
            yield from more
        for text in answer.reasons:
            yield from self._cut(text, self.budget["reason"])
        if answer.verdict == "does_not_fit" and answer.changes:
            yield from self._row("nearest", f"fits: {nearest_words(answer)}", self.budget["nearest"])
        if answer.unknown and answer.verdict != "unknown":
            yield from self._row("unknown", f"{', '.join(answer.unknown)}; {missing_words(answer)}", 2)
        yield from self._question()

    def _where(self) -> str:
        """Return the layout and the GPUs that it uses."""
        holding, machine = self.answer.holding, self.answer.asked.machine
        count = machine.count
        assert holding is not None
        if machine.shares:
            return f"layers dealt to all {len(machine.shares)} GPUs"
        used = holding.terms.accelerators
        cards = f"{used} of {count} GPUs; {count - used} idle" if used < count else f"all {count} GPUs"
        return f"{holding.terms.name} on {'1 GPU' if count == 1 else cards}"

    def _question(self) -> Iterator[str]:
        """Return the KV cache format and the defaults that were taken."""
        answer, asked = self.answer, self.answer.asked
        if answer.holding is not None and self.budget["cache"]:
            yield from self._row("KV cache", f"{answer.holding.terms.kv.upper()}: {answer.kv_why}", 1)
        # the rows of the table are not an assumption about the request
        taken = [text for text in asked.assumed if not text.startswith("users ")]
        if taken:
            # the memory of an ambiguous name and the lengths first: they decide the most
            taken.sort(key=lambda text: (text not in asked.machine.taken, not text.endswith("put tokens")))
            yield from self._row("assumed", "; ".join(taken), self.budget["assumed"])

    def _numbers(self) -> Iterator[str]:
        answer = self.answer
        if answer.runs:
            yield from self._row("traffic", answer.traffic, 2)
            for label, text in run_rows(answer.runs[0]):
                yield from self._row(label, text, self.budget["traffic"])
        if (one := answer.one_user) is not None:
            yield from self._row("one user", f"{self._speed(one)}{self._wait(one)}", self.budget["one"])
        if answer.safe is not None:
            yield from self._row("safe users", safe_words(answer.safe), 1)
        many = shown_users(answer.asked)
        if not answer.runs and (all_users := next((row for row in answer.users if row.users == many > 1), None)):
            running = f"; {all_users.running:,} running, the others wait" if all_users.running < all_users.users else ""
            decode = f", decode {span(all_users.user_rate)}" if all_users.user_rate else ""
            each = f"per user {number(all_users.each_rate.value)} incl. TTFT"
            text = f"{span(all_users.total_rate)} tok/s total; {each}{decode}{running}"
            yield from self._row(f"{many:,} users", text, self.budget["users"])
        if answer.users:
            yield from self._row("context", context_words(answer), 1)
        if answer.ranks:
            yield from self._row("memory", self._memory(), self.budget["memory"])
        machine = answer.asked.machine
        watts = machine.limit_of(answer.asked.power_limit) or machine.accelerator.tdp
        if watts and answer.holding is not None and self.budget["power"]:
            cards = answer.holding.terms.accelerators
            each = "" if machine.mixed else f"{cards} × {watts:g} W = "
            text = f"{each}{cards * watts / 1e3:.3g} kW, accelerators only"
            yield from self._row("power", f"{text}; cost: glmplan compare", 1)
        if answer.basis and self.budget["basis"]:
            plain = answer.evidence == EVIDENCE[0] and "measured" in answer.basis
            text = answer.basis if plain else f"{answer.evidence}; {answer.basis}"
            yield from self._row("evidence", text, self.budget["basis"])
        elif answer.evidence:
            text = f"{answer.evidence}: this model on this accelerator with {answer.asked.engine}, in any layout"
            yield from self._row("evidence", text, 2)
        if answer.narrowing is not None:
            yield from self._narrowing(answer.narrowing)

    def _speed(self, row: UserRow) -> str:
        """Return the decode speed of one user; without it the total rate."""
        return f"{spans(row.user_rate)} tok/s decode" if row.user_rate else f"{spans(row.total_rate)} tok/s total"

    def _wait(self, row: UserRow) -> str:
        return f", first token {time_span(row.ttft)}" if row.ttft is not None else ""

    def _narrowing(self, found: Narrowing) -> Iterator[str]:
        """Return the recommended benchmark; its command complete or not at all."""
        whole = self.budget["measure"] > 1
        words = narrowing_words(found, ("tpot",))
        where = " (--section basis)"
        fits = not whole and _LABEL + len(words) + len(where) <= self.width
        yield from self._row("benchmark", words + where * fits, 1)
        yield from command_lines((found.command,), self.width) if whole else ()

    def _memory(self) -> str:
        """Return the memory of the fullest GPU and the KV pool."""
        holding = self.answer.holding
        assert holding is not None
        terms = holding.terms
        row = self.answer.ranks[stage_ranks(terms, holding.stage)[0]]
        other = row.activation + row.graphs + row.communication + row.reserve
        terms_of = [("weights", sum(row.weights.values())), ("other", other), ("KV cache", row.cache)]
        parts = " + ".join(f"{name} {size / GIB:.1f}" for name, size in terms_of if size)
        shares = self.answer.asked.machine.shares
        where = f"all {len(shares)} GPUs together" if shares else gpus_words(holding)
        text = f"{where}: {parts} of {row.capacity / GIB:.1f} GiB"
        unused = row.capacity - row.total
        if unused >= 0.05 * GIB and holding.lacking <= 0:
            text += f"; {unused / GIB:.1f} GiB unused"
        if holding.lacking > 0 and row.usable < 0.995 * row.capacity:
            text += f", of which the engine takes up to {row.usable / GIB:.1f}"
        if holding.host:
            text += f"; host memory: {host_words(holding)}"
        if holding.pool.tokens > 0:
            low = f" ({holding.pool.low:,.0f} to {holding.pool.high:,.0f})"
            text += (
                f"; KV pool {holding.pool.tokens:,.0f} tokens{low if holding.pool.high > holding.pool.tokens else ''}"
            )
            text += lengths_words(self.answer)
        return text

    def _before(self) -> Iterator[str]:
        """Return errors to mend before the start; other warnings as counts."""
        found = self.answer.warnings
        first = [one for one in found if one.severity in _FIRST]
        if not found:
            return
        if first:
            yield "Before it starts"
        shown = first[: self.budget["errors"]]
        for one in shown:
            line, *more = self._cut(self._error(one), self.budget["error"])
            yield self._paint(line, one.severity, _ERROR_COLOUR)
            yield from more
        rest = [
            _COUNTED[one.severity] for one in (*first[len(shown) :], *found) if one not in first or one not in shown
        ]
        if rest:
            words = ", ".join(count_of(rest.count(nouns), *nouns) for nouns in dict.fromkeys(rest))
            yield from self._cut(f"{words} (--section warnings)", 1)

    def _error(self, one: Warn) -> str:
        effect = f": {one.effect}" if one.kind != "limitation" else ""
        return f"{one.severity}: {one.title}{effect}" + (f". Do: {one.do}" if one.do else "")

    def _changes(self) -> Iterator[str]:
        answer = self.answer
        if answer.runs:
            yield from self._under_traffic()
            return
        if not answer.changes:
            return
        works = answer.verdict == "does_not_fit"
        best = best_changes(answer, self.budget["changes"] + works)
        # the nearest plan is printed above with its numbers
        shown = [one for one in best if not works or one is not nearest_change(answer)][: self.budget["changes"]]
        rest = len(answer.changes) - len(shown) - works
        if shown:
            yield "Other plans that fit" if works else "Biggest improvements (same level of evidence)"
        for one in shown:
            numbers = f": {one.verdict}{change_numbers(answer, one)}" if works else f": {gain_words(answer, one)}"
            # the change itself names a machine
            options = one.ask.startswith("--") and (not one.ask.startswith("--on") or "--weights" in one.ask)
            ask = f", {one.ask}" if options else ""
            yield from self._cut(f"{one.what}{ask}{numbers}", self.budget["change"])
        if not shown and not works:
            more = f"; {rest} at a weaker level (--section changes)" if rest else ""
            yield from self._cut(f"No change gains {100 * LEAST_GAIN:.0f} % at the same level of evidence{more}", 1, "")
        elif rest:
            less = "" if works else " with a smaller gain or weaker evidence"
            yield from self._cut(f"{rest} more{less} (--section changes)", 1)

    def _under_traffic(self) -> Iterator[str]:
        """Return the changes that serve the traffic better, each simulated."""
        plan, *others = self.answer.runs
        shown = others[: self.budget["changes"]]
        if not shown:
            yield from self._cut("No evaluated change shortens the end-to-end latency by 5 %", 1, "")
            return
        yield "Biggest improvements under this traffic (simulated)"
        for one in shown:
            yield from self._cut(change_words(plan, one), self.budget["change"])
        if plan.no_copies:
            yield from self._cut(f"{NO_COPIES}: {plan.no_copies}", 1)
        if len(others) > len(shown):
            yield from self._cut(f"{len(others) - len(shown)} more (--section traffic)", 1)

    def _start(self) -> Iterator[str]:
        answer = self.answer
        if not answer.command:
            return
        yield "Start it"
        yield from launch_lines(answer, self.width)
        for note in answer.command_notes if self.budget["note"] else ():
            yield from self._cut(note, self.budget["note"])

    def _next(self) -> Iterator[str]:
        answer = self.answer
        if words := _asks(answer):
            yield from self._cut(f"Ask next: {'; '.join(words)}", self.budget["asks"], "", "  ")
        yield from self._cut(self.rest, 2, "", "  ")


def _fact_asked(answer: AnswerRecord) -> str:
    """Return how a request states the fact without which no speed is known."""
    machine = answer.asked.machine
    if options := over_all_sockets(machine.accelerator, machine.count):
        return f"one server over all sockets: {options}"
    if not machine.host.host_memory_bandwidth and experts_on_host(answer.asked):
        return (
            "the same with --host-memory-bandwidth, the data-sheet rate of all sockets of a machine, as in 460GB/s, "
            "and --host-cores"
        )
    if machine.accelerator.memory_bandwidth is None:
        return completed_words(answer.asked)
    return "a machine with this fact: a host of the catalogue or a TOML file (--on FILE)"


def _asks(answer: AnswerRecord) -> list[str]:
    """Return follow-up requests, the most useful first."""
    asked = answer.asked
    if answer.verdict == "unknown" and asked.machine.accelerator.kind == "cpu-socket":
        return ["the same with the memory of a machine, as in --host-memory '768 GB'"]
    if answer.verdict == "unknown":
        return [completed_words(asked)]
    if answer.unknown and not answer.user_rate and answer.verdict != "does_not_fit":
        return [_fact_asked(answer)]
    if answer.verdict == "does_not_fit":
        works = [one for one in best_changes(answer) if one.ask]
        other = "another machine (--on), other weights (--weights)"
        return [f"the same with {works[0].ask}" if works else other]
    own = ["--input", "--output"] * (not asked.lengths_given) + ["--users"] * (not asked.users_given)
    words = [f"your own {' and '.join([', '.join(own[:-1])] * (len(own) > 1) + own[-1:])}"] if own else []
    # glmplan safe finds these two itself
    found = [f"--{name}" for name, given in (("users", asked.users_given), ("context", asked.context)) if given]
    instead = f" instead of {' and '.join(found)}" if found else ""
    words.append(f"an SLO: the same options with glmplan safe --slo 'ttft p95 < 2 s'{instead}")
    return [*words, "the arithmetic: --explain"]
