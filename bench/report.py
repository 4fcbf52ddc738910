"""The table and the picture of a file of trials."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import commands
from outcomes import (
    PAIRS_MIN,
    UNAVAILABLE,
    Interval,
    by_case,
    differences,
    interval,
    limit_rate,
    load_median,
    ratios,
)

Rows = list[dict[str, Any]]
HEAD = """# Inrush beside other loaders

{note}{machine}

Times run from the call to the last byte on the device, every tensor kept by the caller; "first" is the first
load of a process whose context exists, "second" another checkpoint after the first one was dropped. Medians
of {pairs}. "of limit" is bytes / seconds over what the machine allowed in the same call. "x" is the other
loader's time over ours, round by round; in brackets the interval that holds the median by the sign test
({confidence}). A row of fewer than {least} pairs is no claim. Every byte was compared after the clock had
stopped, by a second read of the file.{counted}
"""
COLUMNS = ("loader", "first s", "second s", "GB/s", "of limit", "x first", "x second", "CPU-s", "host MB",
           "pinned MB", "PCIe GB", "GPU MB beyond", "import s", "first tensor ms", "remarks")  # fmt: skip


def table(rows: Rows) -> str:
    """Markdown: what was measured, case by case, and at the end what each loader was set to."""
    if not rows:
        return "No trials.\n"
    parts = [_head(rows), *map(_section, by_case(rows)), _settings(rows)]
    return "\n".join(parts)


def _head(rows: Rows) -> str:
    facts = rows[-1]["machine"]
    note = f"**{facts['note']}.**\n\n" if facts.get("note") else ""
    words = [f"{name}: {value}" for name, value in facts.items() if name not in ("note", "counters")]
    counts = sorted({len(_ok(group, name)) for group in by_case(rows) for name in _names(group)} - {0})
    pairs = "no trial" if not counts else f"{counts[0]} to {counts[-1]} trials"
    seen = sorted({round(_ratio(group, name, "second").confidence, 3) for group in by_case(rows)
                   for name in _names(group) if _ratio(group, name, "second").pairs})  # fmt: skip
    said = ", ".join(f"{value:.1%}" for value in seen) or "none"
    return HEAD.format(note=note, machine="; ".join(words), pairs=pairs, confidence=said, least=PAIRS_MIN,
                       counted=_counted(facts.get("counters")))  # fmt: skip


def _counted(counters: dict[str, Any] | None) -> str:
    """Where the figures of pinned memory and PCIe come from, or why there are none."""
    if counters is None:
        return ""
    if counters.get("why"):
        return f"\nPinned and PCIe: ours as it reports; of others unknown: {counters['why']}."
    seen = {name: " and ".join(f"{part:.0%}" for part in parts)
            for name, parts in counters["pinned_seen"].items()}  # fmt: skip
    tried = (f"(of 256 MiB registered and allocated, VmLck and VmPin showed {seen['process']}, the machine's "
             f"counters {seen['machine']})")  # fmt: skip
    pinned = {
        "process": "by the kernel's VmLck and VmPin",
        "machine": "by growth of what is pinned or a driver's in the whole machine, to some MB",
        None: "unknown, since nothing that can be read counts it",
    }[counters["pinned_counter"]]
    pcie = "by the driver's counter, reads of the driver's own included"
    if counters["pcie_counter"] is None:
        pcie = f"unknown, since the driver's counters do not show copies ({counters['pcie_seen']} of 8 GiB)"
    return f"\nPinned: ours as it reports; of others {pinned} {tried}. PCIe: {pcie}; else ours as it reports."


def _names(group: Rows) -> list[str]:
    """The loaders of a case: ours, then the fastest first, then those without a time."""
    def rank(name: str) -> tuple[bool, float]:
        return not name.startswith("inrush"), load_median(_ok(group, name), "second", "seconds") or 1e9

    return sorted(dict.fromkeys(row["rival"] for row in group), key=rank)


def _ok(group: Rows, name: str) -> Rows:
    return [row for row in group if row["rival"] == name and row["outcome"] == "ok"]


def _ratio(group: Rows, name: str, which: str) -> Interval:
    values = ratios(group, group[0]["ours"], name, which)
    return interval(values) if values and name != group[0]["ours"] else Interval(0, 0, 0, 0, 0)


def _section(group: Rows) -> str:
    first = group[0]
    device = first["machine"]["device"]
    limit = _limit(group)
    said = f"Limit: {limit[1]}, {limit[0] / 1e9:.2f} GB/s. " if limit else "Limit: not measured. "
    size = load_median([row for row in group if row["outcome"] == "ok"], "second", "bytes")
    said += f"{size / 1e9:.2f} GB. " if size else ""
    target = "" if device != "cpu" else "CPU target. "
    lines = [f"## {first['title']} ({first['case']})", "", target + said + _verdict(group), ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    rate = limit[0] if limit else None
    unavailable = _unavailable(group)
    lines += ["| " + " | ".join(_cells(group, name, rate)) + " |"
              for name in _names(group) if name not in unavailable]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for name, reason in unavailable.items():
        reasons.setdefault(reason, []).append(name)
    lines += ["", *(f"Not run: {', '.join(names)}: {reason}." for reason, names in reasons.items())]
    return "\n".join(lines) + "\n"


def _limit(group: Rows) -> tuple[float, str] | None:
    """Bytes per second and what they are; the median over the calls whose trials these are."""
    found = [limit for row in group
             if (limit := limit_rate(row["state"], row["limits"], row["machine"]["device"]))]  # fmt: skip
    return (median(rate for rate, _ in found), found[0][1]) if found else None


def _unavailable(group: Rows) -> dict[str, str]:
    """Why a loader cannot run here, for those that have no other row."""
    ran = {row["rival"] for row in group if row["outcome"] != UNAVAILABLE}
    return {row["rival"]: row["reason"] for row in group
            if row["outcome"] == UNAVAILABLE and row["rival"] not in ran}  # fmt: skip


def _verdict(group: Rows) -> str:
    """Against the best of the others, each compared in its own pairs."""
    if group[0]["ours"] == commands.COMMAND:
        return _command_verdict(group)
    seconds = {name: load_median(_ok(group, name), "second", "seconds") for name in _names(group)}
    others = {name: value for name, value in seconds.items()
              if value and not name.startswith("inrush") and not _is_mapped(group, name)}  # fmt: skip
    if not others or not seconds.get(group[0]["ours"]):
        return ""
    best = min(others, key=lambda name: others[name])
    both = [(which, _ratio(group, best, which)) for which in ("second", "first")]
    if group[0]["state"] == "restart":
        both.append(("both", _ratio(group, best, "both")))
    shown = ", ".join(f"{which} {_times(found)}" for which, found in both if found.pairs)
    return f"Best of the others: {best}; its time over ours: {shown}."


def _command_verdict(group: Rows) -> str:
    """What the command takes beyond processes of the same round that load nothing."""
    found = []
    for name in (commands.CONTEXT, commands.TINY):
        values = differences(group, commands.COMMAND, name)
        if values:
            middle, low, high, _, pairs = interval(values)
            claim = "" if pairs >= PAIRS_MIN else f", {pairs} pairs: no claim"
            found.append(f"{name} + {middle * 1e3:.1f} ms [{low * 1e3:.1f}, {high * 1e3:.1f}]{claim}")
    return f"The command took: {'; '.join(found)}." if found else ""


def _is_mapped(group: Rows, name: str) -> bool:
    return any(load.get("mapped") for row in _ok(group, name) for load in row["loads"])


def _times(found: Interval) -> str:
    if not found.pairs:
        return ""
    text = f"{found.middle:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return text if found.is_claim else f"{text} ({found.pairs} pairs: no claim)"


def _cells(group: Rows, name: str, limit: float | None) -> Iterator[str]:
    ok = _ok(group, name)
    yield name
    if not ok:
        yield from [""] * (len(COLUMNS) - 2)
        yield _remarks(group, name)
        return
    times = {which: load_median(ok, which, "seconds") or 0 for which in ("first", "second")}
    sizes = {which: load_median(ok, which, "bytes") or 0 for which in times}
    rates = {which: sizes[which] / times[which] for which in times}
    yield from (f"{value:.4f}" if value < 0.1 else f"{value:.3f}" for value in times.values())
    yield " / ".join(f"{rate / 1e9:.2f}" for rate in rates.values())
    if ok[0]["state"] == "restart" and limit:  # both together, as seconds over those that the limits allow
        yield f"{sum(times.values()) * limit / sum(sizes.values()):.2f} times its seconds"
    else:
        yield " / ".join(f"{rate / limit:.2f}" for rate in rates.values()) if limit else ""
    yield from (_times(_ratio(group, name, which)) for which in times)
    yield f"{load_median(ok, 'second', 'cpu_s') or 0:.2f}"
    yield _shown(load_median(ok, "second", "host_peak_bytes"), 1e-6, 0)
    yield _shown(load_median(ok, "second", "pinned_bytes"), 1e-6, 0, "-")
    yield _shown(load_median(ok, "second", "pcie_bytes"), 1e-9, 2, "-")
    yield _shown(load_median(ok, "second", "gpu_beyond_bytes"), 1e-6, 0)
    yield _shown(median(row["import_s"] for row in ok) if "import_s" in ok[0] else None, 1, 2)
    yield _shown(load_median(ok, "second", "first_tensor_s"), 1e3, 1)
    yield _remarks(group, name)


def _shown(value: float | None, unit: float, digits: int, without: str = "") -> str:
    return without if value is None else f"{value * unit:.{digits}f}"


def _remarks(group: Rows, name: str) -> str:
    mine = [row for row in group if row["rival"] == name]
    found: dict[str, int] = {}
    for row in mine:
        if row["outcome"] != "ok":
            text = f"{row['outcome']}: {row.get('reason', '')}".replace("|", "/").replace("\n", " ")
            found[text] = found.get(text, 0) + 1
    words = [f"{text} ({count} times)" if count > 1 else text for text, count in found.items()]
    if _is_mapped(group, name):
        words.append("mappings of the page cache, nothing was copied")
    reshaped = max((load.get("reshaped", 0) for row in mine for load in row["loads"]), default=0)
    if reshaped:
        words.append(f"{reshaped} tensors with their bytes in another shape")
    return "; ".join(words)


def _settings(rows: Rows) -> str:
    lines = ["## Settings", "", "| loader | version | settings |", "|---|---|---|"]
    versions: dict[str, str] = {}
    for row in rows:
        if row.get("settings"):
            versions[row["rival"]] = row.get("version") or versions.get(row["rival"], "")
    settings = {row["rival"]: row["settings"] for row in rows}
    lines += [f"| {name} | {version} | {settings[name]} |" for name, version in versions.items()]
    return "\n".join(lines) + "\n"


# The picture

OURS, OTHERS, LIMIT = "#0b6e4f", "#8d99ae", "#c1121f"
PANELS_MAX = 15


def draw(rows: Rows, path: Path) -> str:
    """Writes a PNG of at most PANELS_MAX cases; says where, or why not."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plot
    except ImportError as error:
        return f"no picture: {error}"
    # GB/s say nothing of the command, whose time is that of a context.
    groups = [
        group for group in by_case(rows)
        if group[0]["ours"] != commands.COMMAND and any(row["outcome"] == "ok" for row in group)
    ][:PANELS_MAX]  # fmt: skip
    if not groups:
        return "no picture: no trial went well"
    columns = min(len(groups), 3 if len(groups) > 4 else 2)
    lines = -(-len(groups) // columns)
    tallest = max(sum(bool(_ok(group, name)) for name in _names(group)) for group in groups)
    figure, panels = plot.subplots(
        lines, columns, figsize=(5.4 * columns, lines * (1.5 + 0.34 * tallest) + 1.3), squeeze=False
    )
    for panel, group in zip(panels.flat, groups):
        _draw_case(panel, group, tallest)
    for panel in list(panels.flat)[len(groups) :]:
        panel.axis("off")
    facts = rows[-1]["machine"]
    where = "CPU TARGET, no GPU was used" if facts["device"] == "cpu" else facts["gpu"]
    figure.suptitle(f"Loading model weights: Inrush and others\n{where}; {facts['cpus']} CPUs, "
                    f"{facts['file_system']}, torch {facts['torch']}", fontsize=13)  # fmt: skip
    figure.text(0.5, 0.006, "GB/s, median; dark: second load of a process, light: first load; dashed: what "
                "the machine allowed in the same run", ha="center", fontsize=9)  # fmt: skip
    figure.tight_layout(rect=(0, 0.02, 1, 0.98))
    figure.savefig(path, dpi=150)
    plot.close(figure)
    return str(path)


def _draw_case(panel: Any, group: Rows, tallest: int) -> None:
    names = [name for name in _names(group) if _ok(group, name)]
    names.sort(key=lambda name: load_median(_ok(group, name), "second", "seconds") or 1e9, reverse=True)
    limit = _limit(group)
    longest = 0.0
    for place, name in enumerate(names):
        color = OURS if name.startswith("inrush") else OTHERS
        for which, shift, alpha in (("second", 0.19, 1.0), ("first", -0.19, 0.45)):
            ok = _ok(group, name)
            rate = (load_median(ok, which, "bytes") or 0) / (load_median(ok, which, "seconds") or 1) / 1e9
            panel.barh(place + shift, rate, height=0.36, color=color, alpha=alpha)
            panel.text(rate, place + shift, f" {rate:.3g}", va="center", fontsize=7)
            longest = max(longest, rate)
    if limit:
        panel.axvline(limit[0] / 1e9, color=LIMIT, linestyle="--", linewidth=1.2)
        longest = max(longest, limit[0] / 1e9)
    panel.set_xlim(0, longest * 1.15 or 1)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.set_ylim(len(names) - tallest - 0.5, len(names) - 0.5)
    rounds = min(len(_ok(group, name)) for name in names)
    few = f" (only {rounds} rounds: no claim)" if rounds < PAIRS_MIN else ""
    panel.set_title(textwrap.fill(group[0]["title"] + few, 62), fontsize=8.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
