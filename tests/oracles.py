"""Oracles: slow, obvious versions of every algorithm in plain Python, from keys and parameters to workers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import floor, gcd, inf, log
from typing import Any

from skewless import Window
from skewless.testing import Tuples

MASK = 2**64 - 1


def mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def mixed(key: int, seed: int) -> int:
    return mix64(key ^ mix64((seed * 0x9E3779B97F4A7C15 + 1) & MASK))


def candidates(key: int, n: int, seed: int, choices: int) -> list[int]:
    """Returns distinct workers by double hashing: rounds of equal steps, each starting one worker further on."""
    x = mixed(key, seed)
    first, step = (x >> 32) * n >> 32, 1 + ((x & 0xFFFFFFFF) * (n - 1) >> 32)
    a_round = n // gcd(n, step)
    return [(first + j * step + j // a_round) % n for j in range(min(choices, n))]


def argmin(options: list[int], cost: Callable[[int], float]) -> int:
    """Returns the option with the least cost, the first one on ties."""
    return min(options, key=cost)


def hash_(keys: list[int], n: int, seed: int) -> list[int]:
    return [candidates(key, n, seed, 1)[0] for key in keys]


def shuffle(keys: list[int], n: int, seed: int) -> list[int]:
    return [(seed + i) % n for i in range(len(keys))]


def on_greedy(keys: list[int], n: int, seed: int) -> list[int]:
    load, worker_of = [0] * n, dict[int, int]()
    for key in keys:
        if key not in worker_of:
            worker_of[key] = argmin([*range(n)], lambda w: load[w])
        load[worker_of[key]] += 1
    return [worker_of[key] for key in keys]


def potc(keys: list[int], n: int, seed: int) -> list[int]:
    load, worker_of = [0] * n, dict[int, int]()
    for key in keys:
        if key not in worker_of:
            worker_of[key] = argmin(candidates(key, n, seed, 2), lambda w: load[w])
        load[worker_of[key]] += 1
    return [worker_of[key] for key in keys]


def off_greedy(keys: list[int], n: int, seed: int) -> list[int]:
    load, worker_of = [0] * n, dict[int, int]()
    for key in sorted(set(keys), key=lambda key: (-keys.count(key), mixed(key, seed))):
        worker_of[key] = argmin([*range(n)], lambda w: load[w])
        load[worker_of[key]] += keys.count(key)
    return [worker_of[key] for key in keys]


def pkg(keys: list[int], n: int, seed: int, choices: int = 2) -> list[int]:
    load, workers = [0] * n, list[int]()
    for key in keys:
        workers.append(argmin(candidates(key, n, seed, choices), lambda w: load[w]))
        load[workers[-1]] += 1
    return workers


class SpaceSaving:
    def __init__(self, counters: int) -> None:
        self.keys: list[int | None] = [None] * counters
        self.counts, self.errors, self.seen = [0] * counters, [0] * counters, 0

    def tally(self, key: int) -> None:
        self.seen += 1
        if key not in self.keys:
            least = self.counts.index(min(self.counts))
            self.keys[least], self.errors[least] = key, self.counts[least]
        self.counts[self.keys.index(key)] += 1

    def sure(self, key: int) -> int:
        at = self.keys.index(key)
        return self.counts[at] - self.errors[at]

    def halve(self) -> None:
        self.seen //= 2
        self.errors = [error // 2 for error in self.errors]
        self.counts = [max(min(count, 1), count // 2) for count in self.counts]


def solve_choices(heavy: SpaceSaving, n: int) -> int:
    head = [
        heavy.sure(key) / heavy.seen for key in heavy.keys if key is not None and heavy.sure(key) * 5 * n > heavy.seen
    ]
    total = sum(head)
    head.sort(reverse=True)

    def balances(d: int) -> bool:
        prefix = 0.0
        for h, share in enumerate(head, 1):
            prefix += share
            reach = 1.0 - ((n - 1) / n) ** float(h * d)
            if prefix + reach ** float(d) * (total - prefix) + reach * reach * (1.0 - total) > reach + 1e-4:
                return False
        return True

    return next((d for d in range(2, n) if balances(d)), n) if head else min(2, n)


def d_choices(keys: list[int], n: int, seed: int, all_workers: bool = False) -> list[int]:
    load, heavy, workers = [0] * n, SpaceSaving(10 * n), list[int]()
    d, review = (n, inf) if all_workers else (min(2, n), 1)
    for key in keys:
        heavy.tally(key)
        if heavy.seen >= review:
            d = solve_choices(heavy, n)
            review += min(review, 100 * n)
        if heavy.sure(key) * 5 * n <= heavy.seen:
            options = candidates(key, n, seed, 2)
        else:
            options = candidates(key, n, seed, d) if d < n else [*range(n)]
        workers.append(argmin(options, lambda w: load[w]))
        load[workers[-1]] += 1
    return workers


def w_choices(keys: list[int], n: int, seed: int) -> list[int]:
    return d_choices(keys, n, seed, all_workers=True)


class ExactKeys:
    """The distinct keys of one worker: Holistic section 3.2.1."""

    def __init__(self) -> None:
        self.keys = set[int]()

    def contains(self, key: int) -> bool:
        return key in self.keys

    def update(self, key: int) -> None:
        self.keys.add(key)

    def estimate(self) -> float:
        return len(self.keys)


class HyperLogLog:
    """The distinct keys of one worker, roughly: Holistic section 3.2.2."""

    def __init__(self) -> None:
        self.registers = [0] * 4096
        self.highest = 0.0

    def _after(self, key: int) -> list[int]:
        x = mix64(key)
        register, rest = x >> 52, x & (2**52 - 1)
        rank = 53 - rest.bit_length()
        registers = self.registers.copy()
        registers[register] = max(registers[register], rank)
        return registers

    def contains(self, key: int) -> bool:
        return self.of(self._after(key)) == self.of(self.registers)

    def update(self, key: int) -> None:
        self.registers = self._after(key)
        self.highest = max(self.highest, self.of(self.registers))

    def estimate(self) -> float:
        """Returns the highest estimate so far, since an estimate could fall where the formula changes."""
        return self.highest

    @staticmethod
    def of(registers: list[int]) -> float:
        raw = 0.7213 / (1 + 1.079 / 4096) * 4096 * 4096 / sum(0.5**register for register in registers)
        zeros = registers.count(0)
        return 4096 * log(4096 / zeros) if raw <= 2.5 * 4096 and zeros else raw


def holistic(rule: str) -> Callable[..., list[int]]:
    """Returns the oracle of a rule of Holistic (algorithms 1 to 5): cm, am, cam or lm."""

    def oracle(
        keys: list[int],
        n: int,
        seed: int,
        choices: int = 2,
        cardinality: str = "exact",
        window: Window | None = None,
        p: float = 0.5,
        times: list[int] | None = None,
    ) -> list[int]:
        structure = ExactKeys if cardinality == "exact" else HyperLogLog
        load, known = [0] * n, [structure() for _ in range(n)]
        workers, number = list[int](), None
        for time, key in zip(times or range(len(keys)), keys, strict=True):
            if window:
                if number is not None and time // window.size > number:
                    load, known = [0] * n, [structure() for _ in range(n)]
                number = time // window.size if number is None else max(number, time // window.size)
            x, options = mixed(key, seed), candidates(key, n, seed, choices)
            holders = [w for w in options if known[w].contains(x)] if rule in ("am", "cam") else []
            cost = [float(held) for held in load] if rule == "cam" else [k.estimate() for k in known]
            if rule == "lm":
                of_load = [scaled(w, [float(held) for held in load]) for w in range(n)]
                cost = [p * of_load[w] + (1 - p) * scaled(w, cost) for w in range(n)]
            worker = holders[0] if holders else min(options, key=cost.__getitem__)
            if not holders:
                known[worker].update(x)
            load[worker] += 1
            workers.append(worker)
        return workers

    return oracle


def scaled(worker: int, values: list[float]) -> float:
    spread = max(values) - min(values)
    return (values[worker] - min(values)) / spread if spread else 0.0


def dagreedy(
    keys: list[int], n: int, seed: int, window: Window | None = None, times: list[int] | None = None
) -> list[int]:
    size, slide, slides = (window.size, window.slide, window.slides) if window else (2**62, 2**62, 1)
    heavy = SpaceSaving(10 * n)
    tuples: list[tuple[int, int]] = []  # slide, worker
    held: list[tuple[int, int, int]] = []  # slide, tracked key, worker
    tracked, workers = set[int](), list[int]()
    windows, now = -(2**70), -(2**70)  # before all times
    for time, key in zip((times if window else None) or range(len(keys)), keys, strict=True):
        for _ in range(min(time // size - windows, 63) if workers else 0):
            heavy.halve()
        windows, now = max(windows, time // size), max(now, time // slide)
        tuples = [t for t in tuples if t[0] > now - slides]
        held = [h for h in held if h[0] > now - slides]
        heavy.tally(key)
        for lost in {k for k in tracked if k not in heavy.keys}:
            tracked.discard(lost)
            held = [h for h in held if h[1] != lost]
        load = [sum(t[1] == w for t in tuples) for w in range(n)]
        worker = candidates(key, n, seed, 1)[0]
        if heavy.sure(key) * 5 * n > heavy.seen:
            if key not in tracked:
                tracked.add(key)
                if heavy.sure(key) > 1:
                    held.append((now, key, worker))
            holders = {h[2] for h in held if h[1] == key}
            # 1/2 [holds] - 1/2 (load - mean) / mean, times 2 n mean and less a constant, so that it is whole.
            score = [len(tuples) * (w in holders) - n * load[w] for w in range(n)]
            worker = score.index(max(score))
        tuples.append((now, worker))
        if key in tracked:
            held.append((now, key, worker))
        workers.append(worker)
    return workers


def host_of(key: int, size: int) -> int:
    """Returns the host of a key: the leading bits of 32, from its two halves times two constants."""
    upper, lower = divmod(key, 2**32)
    return (lower * 1640531527 + upper * 444758427) % 2**32 * size // 2**32


Plan = dict[int, list[tuple[int, float]]]  # for each key: its workers, and how many of its tuples each of them gets


def by_plan(keys: list[int], plan: Plan) -> list[int]:
    """Routes tuples by a plan; `golden` chooses among the workers of a key."""
    spent, workers = dict.fromkeys(keys, 0), list[int]()
    for key in keys:
        spent[key] += 1
        workers.append(plan[key][golden(spent[key], [amount for _, amount in plan[key]])][0])
    return workers


def level(keys: list[int], n: int, seed: int, **params: Any) -> list[int]:
    """Plans once, starting from hashing, and routes the same keys; by hashing if the plan is not worth its moves."""
    moving = params.pop("moving", None)
    old, new = hash_plan(keys, n), level_plan(keys, n, **params)
    (before, _, _), (after, _, arriving) = effort(old, n, old), effort(new, n, old)
    stays = moving is not None and moving.batches * (before - after) <= arriving
    return by_plan(keys, old if stays else new)


def level_after(keys: list[int], n: int, more: list[int]) -> list[int]:
    """Plans for some keys, then routes more of them: an overfull worker passes tuples to the one with the most room."""
    plan, spent, workers = level_plan(keys, n), dict.fromkeys(keys, 0), list[int]()
    planned, split = [0.0] * n, [0] * n
    for key, shares in plan.items():
        parts = in_parts([amount for _, amount in shares])
        for (worker, _), part in zip(shares, parts, strict=True):
            planned[worker] += keys.count(key) * part / 2**32
            split[worker] += len(shares) > 1
    load = [0] * n
    for number, key in enumerate(more):
        rounds = number // len(keys) + 1
        spent[key] += 1
        worker = plan[key][golden(spent[key], [amount for _, amount in plan[key]])][0]
        room = [rounds * planned[w] - load[w] for w in range(n)]
        if room[worker] <= -2 * (planned[worker] ** 0.5 + split[worker]) and len(keys) >= n:
            worker = room.index(max(room))
        load[worker] += 1
        workers.append(worker)
    return workers


def level_plan(
    keys: list[int],
    n: int,
    split: bool = True,
    even: bool = False,
    speeds: tuple[float, ...] | None = None,
    key_cost: float = 0.0,
) -> Plan:
    size = 1 << (64 * n - 1).bit_length()
    former = [host * n // size for host in range(size)]
    total = len(keys)
    order = sorted(set(keys), key=lambda key: (-keys.count(key), key))
    counts = [float(keys.count(key)) for key in order]
    hot = sum(count > total / (10 * n) for count in counts)
    poured = next((i + 1 for i in range(len(order)) if sum(counts[: i + 1]) >= 0.02 * total), 0)
    hot = max(hot, min(poured, 20 * n, len(order)))
    mass = [0.0] * size
    for key, count in zip(order[hot:], counts[hot:], strict=True):
        mass[host_of(key, size)] += count + key_cost
    share = [speed / sum(speeds) for speed in speeds] if speeds else [1 / n] * n
    was = [former[host_of(key, size)] for key in order[:hot]]
    if not split:
        sizes = [count + key_cost for count in counts[:hot]] + mass
        chosen = packed(sizes, was + former, share, even)
        at = {key: [(chosen[i], counts[i])] for i, key in enumerate(order[:hot])}
        hosts = chosen[hot:]
    else:
        everything = sum(mass) + sum(counts[:hot]) + key_cost * (hot + n - 1)
        room = [part * everything for part in share]
        hosts = [-1] * size
        heaviest = sorted(range(size), key=lambda host: -mass[host])
        for host in heaviest:
            if mass[host] <= room[former[host]]:
                hosts[host] = former[host]
                room[former[host]] -= mass[host]
        for host in heaviest:
            if hosts[host] < 0:
                hosts[host] = room.index(max(room))
                room[hosts[host]] -= mass[host]
        at = {}
        dust = 1e-9 * everything
        for key, count, home in zip(order[:hot], counts[:hot], was, strict=True):
            at[key] = list[tuple[int, float]]()
            options = [home] if room[home] > key_cost + dust else []
            while count > dust or not at[key]:
                if options:
                    worker = options.pop()
                else:
                    enough = [w for w in range(n) if room[w] >= count + key_cost]
                    worker = min(enough, key=lambda w: room[w]) if enough else room.index(max(room))
                amount = min(count, max(room[worker] - key_cost, 0.0))
                amount = count if amount <= dust else amount
                at[key].append((worker, amount))
                room[worker] -= amount + key_cost
                count -= amount
    tail = {key: [(hosts[host_of(key, size)], float(keys.count(key)))] for key in order[hot:]}
    return {**at, **tail}


def packed(sizes: list[float], homes: list[int], share: list[float], even: bool) -> list[int]:
    """Packs whole items by the longest-processing-time rule, or keeps some on their workers if that is as good."""
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    best, by_rule = (inf, inf), list[int]()
    for kept in (0.0, 1.0, 0.97, 0.9, 0.75, 0.5):
        load, new = [0.0] * len(share), [-1] * len(sizes)
        for item in order:
            home = homes[item]
            room = best[even] * kept * share[home] if kept else 0.0
            alone = room and not load[home] and sizes[item] > room
            if not sizes[item] or load[home] + sizes[item] <= room or alone:
                new[item] = home
                load[home] += sizes[item]
        for item in order:
            if new[item] < 0:
                heights = [(load[w] + sizes[item]) / share[w] for w in range(len(share))]
                new[item] = heights.index(min(heights))
                load[new[item]] += sizes[item]
        heights = [held / part for held, part in zip(load, share, strict=True)]
        giants = {new[i] for i in range(len(sizes)) if sizes[i] > sum(sizes) * share[new[i]]}
        fullest = max(heights), max((heights[w] for w in range(len(share)) if w not in giants), default=0.0)
        if not kept:
            best, by_rule = fullest, new
        elif fullest[0] <= 1.005 * best[0] and (not even or fullest[1] <= 1.005 * best[1]):
            return new
    return by_rule


class Sketch:
    """Count-min, four rows of 4096 columns."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], int] = {}

    def count(self, key: int) -> int:
        found, x = list[int](), key
        for row in range(4):
            x = mix64((x + 1) & MASK)
            cell = (row, x % 4096)
            self.cells[cell] = self.cells.get(cell, 0) + 1
            found.append(self.cells[cell])
        return min(found)


def dalton(
    keys: list[int],
    n: int,
    seed: int,
    window: Window | None = None,
    hot: int = 1,
    frequencies: str = "exact",
    micro_batch: bool = False,
    greedy: bool = False,
    times: list[int] | None = None,
) -> list[int]:
    """Routes by algorithm 1 with lists: tuples in the window, and for each hot key its estimates and workers."""
    slide, slides = (window.slide, window.slides) if window else (2**62, 1)
    length = window.slide if window else 1000
    tuples: list[tuple[int, int]] = []  # slide, worker
    held: list[tuple[int, int, int]] = []  # slide, hot key, worker
    values, until = dict[int, list[float]](), dict[int, int]()
    exact, rough, sketched = dict[int, int](), Sketch(), frequencies == "sketch"
    seen, before, statistics, now = 0, 0, None, -(2**70)
    workers = list[int]()
    salt = mix64((seed * 0x9E3779B97F4A7C15 + 1) & MASK)
    for number, (time, key) in enumerate(zip(times or range(len(keys)), keys, strict=True), 1):
        if statistics is not None and time // length > statistics:
            before, seen = seen if time // length == statistics + 1 else 0, 0
            if frequencies == "hybrid":
                taken = sum(row == 0 for row, _ in rough.cells)
                sketched = 4096 - taken < 0.6065 * 4096 if sketched else 2 * len(exact) > 4096
            exact, rough = {}, Sketch()
            for cold in [k for k in values if until[k] < time // length]:
                del values[cold]
                held = [h for h in held if h[1] != cold]
        statistics = time // length if statistics is None else max(statistics, time // length)
        if time // slide > now:
            tuples = [t for t in tuples if t[0] > time // slide - slides]
            held = [h for h in held if h[0] > time // slide - slides and not (micro_batch and workers)]
            now = time // slide
        x = mixed(key, seed)
        exact[key] = exact.get(key, 0) + (not sketched)
        often = rough.count(x) if sketched else exact[key]
        seen += 1
        hashed = candidates(key, n, seed, 1)[0]
        if before and often > 1 and often * hot * n >= before:
            if key not in values and len(values) < hot * n:
                values[key] = [-2.0] * n
                held.append((now, key, hashed))
            if key in values:
                until[key] = statistics + 1
        worker = hashed
        load = [sum(t[1] == w for t in tuples) for w in range(n)]
        if key in values:
            q = values[key]
            from_hash = [*range(hashed, n), *range(hashed)]
            worker = max(from_hash, key=q.__getitem__)
            coin = mix64((salt + number) & MASK)
            if greedy:
                holders = sorted(sorted({h[2] for h in held if h[1] == key}), key=load.__getitem__)
                room = holders and float(load[holders[0]] * n) <= 1.05 * float(len(tuples) + 1)
                worker = holders[0] if room else load.index(min(load))
            elif (coin >> 11) * 2.0**-53 < 0.1:
                worker = (mix64(coin) >> 32) * n >> 32
            held.append((now, key, worker))
            here, mean = float(load[worker] + 1), float(len(tuples) + 1) / n
            fragments = len({h[2] for h in held if h[1] == key})
            reward = -0.5 * ((here - mean) / max(here, mean) + float(fragments) / n)
            q[worker] += 0.1 * (reward - q[worker])
        tuples.append((now, worker))
        workers.append(worker)
    return workers


def hash_plan(keys: list[int], n: int) -> Plan:
    size = 1 << (64 * n - 1).bit_length()
    return {key: [(host_of(key, size) * n // size, float(keys.count(key)))] for key in sorted(set(keys))}


def effort(plan: Plan, n: int, old: Plan) -> tuple[float, float, float]:
    """Returns the tuples of the busiest worker, the parts at the busiest reducer, and the most that arrive anywhere."""
    load, reducers, arriving = ([0.0] * n for _ in range(3))
    size = 1 << (64 * n - 1).bit_length()
    for key, shares in plan.items():
        for worker, amount in shares:
            load[worker] += amount
            arriving[worker] += max(0.0, amount - dict(old[key]).get(worker, 0.0))
        reducers[host_of(key, size) % n] += len(shares) if len(shares) > 1 else 0
    return max(load), max(reducers), max(arriving)


def auto(keys: list[int], n: int, seed: int, split: bool = True, costs: tuple[float, ...] = (1, 1, 0.1)) -> list[int]:
    """Routes by the cheapest of three plans if it is more than a tenth cheaper than hashing, or else by hashing."""
    old = hash_plan(keys, n)
    plans = [old, level_plan(keys, n, split, costs[2] == 0), kip_plan(keys, n)]
    weighed = [sum(cost * term for cost, term in zip(costs, effort(plan, n, old), strict=True)) for plan in plans]
    best = next(number for number in range(3) if weighed[number] <= min(weighed) * (1 + 1e-6))
    return by_plan(keys, plans[best if weighed[best] < 0.9 * weighed[0] else 0])


def kip(
    keys: list[int], n: int, seed: int, heavy: int = 2, slack: float = 0.001, memory: int | None = None
) -> list[int]:
    """Routes by the plan if ten batches gain more by it than it moves, or else by hashing."""
    old, new = hash_plan(keys, n), kip_plan(keys, n, heavy, slack)
    (before, _, _), (after, _, arriving) = effort(old, n, old), effort(new, n, old)
    return by_plan(keys, new if 10 * (before - after) > arriving else old)


def kip_plan(keys: list[int], n: int, heavy: int = 2, slack: float = 0.001) -> Plan:
    """Plans once by algorithm 1, starting from hashing."""
    size = 1 << (64 * n - 1).bit_length()
    hosts = [host * n // size for host in range(size)]
    order = sorted(set(keys), key=lambda key: (-keys.count(key), key))
    share = {key: 16.0 * keys.count(key) / (16.0 * len(keys)) for key in order}
    most = max(1 / n, share[order[0]]) * (1 + slack) if order else 0.0
    load, worker_of = [0.0] * n, dict[int, int]()
    for key in order[: heavy * n]:
        at = hosts[host_of(key, size)]
        worker_of[key] = at if load[at] + share[key] <= most else load.index(min(load))
        load[worker_of[key]] += share[key]
    mass = [0.0] * size
    for key in order[heavy * n :]:
        mass[host_of(key, size)] += share[key]
    for host in range(size):
        load[hosts[host]] += mass[host]
    for host in range(size):
        least = load.index(min(load))
        if mass[host] and load[hosts[host]] > most and load[least] + mass[host] < load[hosts[host]]:
            load[hosts[host]] -= mass[host]
            load[least] += mass[host]
            hosts[host] = least
    return {key: [(worker_of.get(key, hosts[host_of(key, size)]), float(keys.count(key)))] for key in order}


def unmix64(x: int) -> int:
    x = (x ^ x >> 31 ^ x >> 62) * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    x = (x ^ x >> 27 ^ x >> 54) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return x ^ x >> 30 ^ x >> 60


def gedik(rule: str) -> Callable[..., list[int]]:
    """Returns the oracle of scan, redist or readj, which plans once, starting from the ring."""

    def oracle(
        keys: list[int], n: int, seed: int, heavy: int = 2, theta: float = 0.2, compute: str = "linear"
    ) -> list[int]:
        if not keys:
            return []
        size, powers = 1 << (64 * n - 1).bit_length(), [1] if compute == "linear" else [1, 2]
        ring = sorted((unmix64(point + 1), point // 100) for point in range(100 * n))
        points = [point for point, _ in ring]
        hosts = [ring[bisect_left(points, host * 2**64 // size) % len(ring)][1] for host in range(size)]
        order = sorted(set(keys), key=lambda key: (-keys.count(key), key))
        counts = [float(keys.count(key)) for key in order]
        old = [hosts[host_of(key, size)] for key in order]
        heavies = range(min(heavy * n, len(order)))
        scale = [theta * sum(count**power for count in counts) / n for power in powers]
        toll = n / sum(counts[: len(heavies)])
        worker_of = {i: old[i] for i in range(len(order)) if i not in heavies or rule == "readj"}
        held = [[0.0] * n for _ in powers]
        for i, worker in worker_of.items():
            shift(held, powers, counts[i], worker)

        def penalty(*shifts: tuple[float, int]) -> float:
            """Returns the penalty if these counts came to these workers; a count below 0 leaves its worker."""
            for count, worker in shifts:
                shift(held, powers, count, worker)
            spreads = [(max(row) - min(row)) / part for row, part in zip(held, scale, strict=True)]
            for count, worker in shifts:
                shift(held, powers, -count, worker)
            return spreads[0] if len(powers) == 1 else (spreads[0] * spreads[0] * spreads[1]) ** (1 / 3)

        def best(i: int, moved: float) -> tuple[float, int]:
            options = [*range(n)] if len(powers) == 1 else [old[i], *(row.index(min(row)) for row in held)]
            ranked = [(penalty((counts[i], w)) + (moved + (w != old[i]) * counts[i]) * toll, w) for w in options]
            if len(powers) == 1:
                return min(ranked, key=lambda option: (option[0], option[1] != old[i], held[0][option[1]]))
            return min(ranked, key=lambda option: option[0])

        moved = 0.0
        while len(worker_of) < len(order):
            left = [i for i in heavies if i not in worker_of][: 1 if rule == "scan" else None]
            found = [(*best(i, moved if rule == "redist" else 0.0), i) for i in left]
            _, worker, i = min(found, key=lambda option: option[0] / counts[option[2]])
            moved += counts[i] * (worker != old[i])
            worker_of[i] = worker
            shift(held, powers, counts[i], worker)
        turns = dict.fromkeys(heavies, 0)
        while rule == "readj":
            free, now = [i for i in heavies if turns[i] < 3], penalty()
            steps = [((i,), w) for i in free for w in range(n) if w != worker_of[i]]
            swaps = [((i, j), worker_of[j]) for i in free for j in free if i < j and worker_of[i] != worker_of[j]]
            ranked = [
                ((now - penalty(*step_of(worker_of, counts, step, w))) / sum(counts[i] for i in step), step, w)
                for step, w in sorted([*steps, *swaps], key=lambda s: (s[0][0], len(s[0]), s[0][1:], s[1]))
            ]
            gain, step, worker = max(ranked, key=lambda option: option[0], default=(0.0, (), 0))
            if gain <= toll:
                break
            for count, w in step_of(worker_of, counts, step, worker):
                shift(held, powers, count, w)
            for i, w in zip(step, (worker, worker_of[step[0]]), strict=False):
                worker_of[i] = w
                turns[i] += 1
        where = {key: worker_of[i] for i, key in enumerate(order)}
        return [where[key] for key in keys]

    return oracle


def shift(held: list[list[float]], powers: list[int], count: float, worker: int) -> None:
    for row, power in zip(held, powers, strict=True):
        row[worker] += abs(count) ** power * (1 if count > 0 else -1)


def step_of(
    worker_of: dict[int, int], counts: list[float], step: tuple[int, ...], worker: int
) -> list[tuple[float, int]]:
    """Returns the counts that shift when a key goes to a worker, and the second key, if any, goes the other way."""
    source = worker_of[step[0]]
    there = [(counts[step[0]], worker), (-counts[step[0]], source)]
    return there + [pair for i in step[1:] for pair in ((counts[i], source), (-counts[i], worker))]


def mixed_(keys: list[int], n: int, seed: int, heavy: int = 2, theta: float | None = None) -> list[int]:
    """Plans by phases 2 and 3 from an empty table, and searches for the smallest bound that a plan can keep."""
    size = 1 << (64 * n - 1).bit_length()
    order = sorted(set(keys), key=lambda key: (-keys.count(key), key))
    count = [float(keys.count(key)) for key in order]
    hashed = [host_of(key, size) * n // size for key in order]

    def within(bound: float) -> list[int] | None:
        held = [[i for i in range(len(order)) if hashed[i] == worker] for worker in range(n)]
        queue, taken = list[int](), 0

        def load(worker: int) -> float:
            return sum(count[i] for i in held[worker])

        for worker in range(n):
            while load(worker) > bound:
                queue.append(held[worker].pop(0))
                taken += 1
        while queue and taken <= 4 * heavy * n:
            queue.sort()
            key = queue.pop(0)
            for worker in sorted(range(n), key=load):
                smaller = [i for i in sorted(held[worker]) if count[i] < count[key]]
                leaving = list[int]()
                while smaller and load(worker) + count[key] - sum(count[i] for i in leaving) > bound:
                    leaving.append(smaller.pop(0))
                if load(worker) + count[key] - sum(count[i] for i in leaving) <= bound:
                    held[worker] = [i for i in held[worker] if i not in leaving] + [key]
                    queue += leaving
                    taken += len(leaving)
                    break
            else:
                return None
        workers = [next((w for w in range(n) if i in held[w]), -1) for i in range(len(order))]
        fits = sum(worker != home for worker, home in zip(workers, hashed, strict=True)) <= heavy * n
        return workers if fits and taken <= 4 * heavy * n else None

    if not keys:
        return []
    mean = len(keys) / n
    low = max(mean * (1 + (theta or 0.0)), count[0])
    high = before = max(sum(c for c, home in zip(count, hashed, strict=True) if home == worker) for worker in range(n))
    best = within(low)
    if best is None:
        best = hashed
        while high - low > 0.001 * mean:
            middle = (low + high) / 2
            found = within(middle)
            low, high, best = (middle, high, best) if found is None else (low, middle, found)
        best = hashed if before <= 1.03 * high else best
    where = dict(zip(order, best, strict=True))
    return [where[key] for key in keys]


def prompt(keys: list[int], n: int, seed: int) -> list[int]:
    """Plans this batch by algorithm 2, and routes its tuples by that plan."""
    order = sorted(set(keys), key=lambda key: (-keys.count(key), key))
    cut = max(1, len(keys) // max(len(order), 1))
    room, blocks = [float(-(-len(keys) // n))] * n, {key: [0.0] * n for key in order}
    heavy = [key for key in order if keys.count(key) > cut]
    for number, key in enumerate(heavy):
        blocks[key][number % n] += cut
        room[number % n] -= cut
    zigzag = [*range(n), *reversed(range(n))]
    for number, key in enumerate((key for key in order if key not in heavy), len(heavy) % n):
        blocks[key][zigzag[number % (2 * n)]] += keys.count(key)
        room[zigzag[number % (2 * n)]] -= keys.count(key)
    for number, key in reversed([*enumerate(heavy)]):
        left, at, at_home = float(keys.count(key) - cut), number % n, True
        while left > 0:
            amount = min(left, max(room[at], 0.0))
            if amount == 0 and not at_home:
                amount = left
            blocks[key][at] += amount
            room[at] -= amount
            left -= amount
            enough = [block for block in range(n) if room[block] >= left]
            at, at_home = min(enough or [room.index(max(room))], key=room.__getitem__), False
    return by_plan(keys, {key: list(enumerate(amounts)) for key, amounts in blocks.items()})


def golden(number: int, amounts: list[float]) -> int:
    """Returns the index of the amount that takes the tuple with this number, by multiples of the golden ratio."""
    parts = in_parts(amounts)
    coin = number * 2654435769 % 2**32
    return next(i for i in range(len(parts)) if coin < sum(parts[: i + 1]))


def in_parts(amounts: list[float]) -> list[int]:
    parts = [floor(amount / sum(amounts) * 2**32) for amount in amounts]
    parts[amounts.index(max(amounts))] += 2**32 - sum(parts)
    return parts


ORACLES: dict[str, Callable[..., list[int]]] = {
    "hash": hash_,
    "shuffle": shuffle,
    "potc": potc,
    "on_greedy": on_greedy,
    "off_greedy": off_greedy,
    "pkg": pkg,
    "d_choices": d_choices,
    "w_choices": w_choices,
    "cm": holistic("cm"),
    "am": holistic("am"),
    "cam": holistic("cam"),
    "lm": holistic("lm"),
    "dagreedy": dagreedy,
    "dalton": dalton,
    "prompt": prompt,
    "scan": gedik("scan"),
    "redist": gedik("redist"),
    "readj": gedik("readj"),
    "mixed": mixed_,
    "kip": kip,
    "level": level,
    "auto": auto,
}


def decide(name: str, tuples: Tuples, n_workers: int, seed: int, params: dict[str, Any]) -> list[int]:
    """Returns the workers by the oracle of a name, which gets the times only if it has a window."""
    windowed = "window" in params or name == "dalton"
    timed = {"times": tuples.times.tolist()} if windowed and tuples.times is not None else {}
    return ORACLES[name](tuples.keys.tolist(), n_workers, seed, **params, **timed)
