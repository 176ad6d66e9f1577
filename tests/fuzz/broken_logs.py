"""Runs whose configuration or logs were broken on purpose, each a function that writes one into a folder."""

import shutil

import run_folders
from run_folders import consistent, finished, metrics

import tff_mf
from tff_mf.experiments import reports


def copied(good, folder):
    shutil.copytree(good[0], folder)
    return folder


def with_entries(good, folder, change):
    copied(good, folder)
    run_folders.write_ledger(folder, change(run_folders.read_entries(folder)))
    reports.write(folder, realised=True)


def place(entries, kind, number):
    return next(i for i, each in enumerate(entries) if each["kind"] == kind and each["round"] == number)


def broken_artifact(good, folder):
    copied(good, folder)
    (folder / "mechanism.safetensors").unlink()
    tff_mf.save(tff_mf.Identity(), folder / "mechanism.safetensors")
    reports.write(folder, realised=True)


def broken_column(good, folder):
    copied(good, folder)
    metrics(folder, 9, ["round", "seconds", "loss", "train_accuracy"])
    reports.write(folder, realised=True)


def broken_log(good, folder):
    copied(good, folder)
    lines = (folder / "participation.csv").read_text().splitlines()
    (folder / "participation.csv").write_text("\n".join(lines[:-3]) + "\n")
    reports.write(folder, realised=True)


def broken_both_logs(good, folder):
    copied(good, folder)
    lines = (folder / "participation.csv").read_text().splitlines()
    (folder / "participation.csv").write_text("\n".join(lines[:-2]) + "\n")
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    reports.write(folder, realised=True)


def broken_by_a_second_release(good, folder):
    """The first attempt had other clients, and left no line in participation.csv."""
    copied(good, folder)
    entries = run_folders.read_entries(folder)
    at = next(i for i, each in enumerate(entries) if each["kind"] == "released" and each["round"] == 4)
    first = run_folders.begun(4, ["c6", "c7"])
    entries[at - 1]["attempt"] = entries[at]["attempt"] = 2
    entries[at - 1 : at - 1] = [first, {"kind": "released", "round": 4, "attempt": 1}]
    run_folders.write_ledger(folder, entries)
    reports.write(folder, realised=True)


def broken_by_a_release_of_nothing(good, folder):
    released = {"kind": "released", "round": 10, "attempt": 1}
    with_entries(good, folder, lambda entries: [*entries[:-1], released, entries[-1]])


def broken_by_order(good, folder):
    def swap(entries):
        one, other = place(entries, "released", 2), place(entries, "begin", 3)
        entries[one], entries[other] = entries[other], entries[one]
        del entries[place(entries, "released", 1)]
        return entries

    with_entries(good, folder, swap)


def broken_by_an_attempt_that_was_given_up(good, folder):
    """Attempt 1 of round 5 was followed by attempt 2, and released nevertheless."""

    def forge(entries):
        entries[place(entries, "released", 5)]["attempt"] = 1
        return entries

    with_entries(good, folder, forge)


def broken_by_what_follows_the_end(good, folder):
    with_entries(good, folder, lambda entries: [*entries, {"kind": "restarted", "round": 10}])


def broken_by_a_jump(good, folder):
    def skip(entries):
        return [each for each in entries if each.get("round") != 3]

    with_entries(good, folder, skip)


def broken_by_a_hidden_attempt(good, folder):
    copied(good, folder)
    lines = run_folders.read_log(folder)
    run_folders.write_log(folder, [line for line in lines if line[:2] != (5, 1)])
    reports.write(folder, realised=True)


def broken_by_clients_of_an_attempt_that_was_given_up(good, folder):
    """They came back two rounds later: too soon, if the attempt was observed."""
    finished(folder, planned=[], killed=[4])
    lines = run_folders.read_log(folder)
    late = [client for n, _, client in lines if n == 6]
    first = iter(late)
    lines = [(n, a, next(first) if (n, a) == (4, 1) else client) for n, a, client in lines]
    run_folders.write_log(folder, lines)
    consistent(folder)


def broken_by_a_client_twice(good, folder):
    """The round was begun twice, so that a count of lines finds nothing."""
    finished(folder, planned=[], killed=[4])
    lines = run_folders.read_log(folder)
    who = iter(["c0", "c0"])
    run_folders.write_log(folder, [(n, a, next(who) if (n, a) == (4, 2) else client) for n, a, client in lines])
    consistent(folder)


def broken_by_a_ledger_of_nothing(good, folder):
    with_entries(good, folder, lambda entries: [{**entries[0], "bound_to": None}, *entries[1:]])


def broken_by_metrics_of_what_was_not_released(good, folder):
    """The model of the last round was evaluated, and its metrics are in the folder."""

    def unreleased(entries):
        return [each for each in entries if (each["kind"], each.get("round")) != ("released", 9)]

    with_entries(good, folder, unreleased)


def broken_by_true(good, folder):
    """Python takes true for 1."""
    with_entries(
        good, folder, lambda entries: [{**e, "attempt": True} if e.get("attempt") == 1 else e for e in entries]
    )


def with_counts(entries, change=lambda counts: counts):
    """Returns entries whose releases count two reports each, one of them changed."""
    counts = {"came": 3, "counted": 2, "clipped": 1, "zeroed": 0, "refused": {"late": 1}}
    found = [{**each, "reports": counts} if each["kind"] == "released" else each for each in entries]
    at = place(found, "released", 3)
    found[at] = {**found[at], "reports": change(dict(counts))}
    return found


def broken_by_more_reports_than_clients(good, folder):
    """A client's update is in the sum twice."""
    with_entries(good, folder, lambda found: with_counts(found, lambda counts: {**counts, "came": 4, "counted": 3}))


def broken_by_counts_that_do_not_add_up(good, folder):
    with_entries(good, folder, lambda found: with_counts(found, lambda counts: {**counts, "came": 2}))


def broken_by_a_reason_that_is_a_text(good, folder):
    with_entries(good, folder, lambda found: with_counts(found, lambda counts: {**counts, "refused": {"ε≤0.01": 1}}))
