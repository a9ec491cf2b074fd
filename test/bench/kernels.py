#!/usr/bin/env python3
"""A table of kernels from what ncu says of `random -o` with one batch size:
reads its --csv, takes the last third of all launches, which are the third
search's, and adds up those of a kernel."""
import csv
import sys

METRICS = {
    "gpu__time_duration.sum": "time",
    "dram__bytes.sum": "dram",
    "lts__t_bytes.sum": "l2",
    "sm__inst_issued.avg.pct_of_peak_sustained_elapsed": "issue",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared"
    ".avg.pct_of_peak_sustained_elapsed": "shared",
    "sm__pipe_tensor_op_hmma_cycles_active"
    ".avg.pct_of_peak_sustained_elapsed": "tensor",
}


def launches(lines):
    """[{kernel, metric: value}] in their order."""
    found = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        launch = found.setdefault(int(row["ID"]), {
            "kernel": row["Kernel Name"].split("(")[0].replace("void ", "")})
        launch[METRICS[row["Metric Name"]]] = float(
            row["Metric Value"].replace(",", "") or 0)
    return [found[i] for i in sorted(found)]


def main():
    if sys.argv[1:] == ["--metrics"]:
        print(",".join(METRICS))
        return
    found = launches(sys.stdin)
    if not found:
        sys.exit("kernels.py: ncu has measured nothing")
    kernels = {}
    for launch in found[len(found) - len(found) // 3:]:
        kernels.setdefault(launch["kernel"], []).append(launch)
    print("%-28s %5s %9s %9s %9s %7s %7s %7s" % (
        "kernel", "runs", "us", "dram GB/s", "L2 GB/s", "issue", "shared",
        "tensor"))
    for name, runs in kernels.items():
        ns = sum(run["time"] for run in runs)

        def mean(metric):
            return sum(run[metric] * run["time"] for run in runs) / ns

        print("%-28s %5d %9.1f %9.0f %9.0f %6.0f%% %6.0f%% %6.0f%%" % (
            name, len(runs), ns / 1e3, sum(run["dram"] for run in runs) / ns,
            sum(run["l2"] for run in runs) / ns, mean("issue"),
            mean("shared"), mean("tensor")))


if __name__ == "__main__":
    main()
