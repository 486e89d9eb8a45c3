# Counts test cases from what CTest printed (first file) and its full log (second file).
# The first says how each test ended, the second holds the output of the cmocka programs.

function max(a, b) { return a > b ? a : b }

FNR == 1 { file++ }

# "2/9 Test #2: base.view ....   Passed  0.01 sec", with "***Failed", "***Skipped" and the like for the others
file == 1 && /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
    name = $0
    sub(/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /, "", name)
    sub(/ .*/, "", name)
    sub(/\.\.+.*/, "", name)
    ending[name] = /\*\*\*Skipped/ ? "skipped" : / Passed +[0-9.]+ sec/ ? "passed" : "failed"
}

file == 2 && /^[0-9]+\/[0-9]+ Test: / { name = $3; running = 0 }
file == 2 && /^\[==========\].*Running/ { running = 1 }
file == 2 && /^\[==========\].*test\(s\) run/ { running = 0 }
file == 2 && /^\[ +OK \]/ { ok[name]++ }
file == 2 && running && /^\[  FAILED  \]/ { bad[name]++ }
file == 2 && running && /^\[  SKIPPED \]/ { left_out[name]++ }
file == 2 && !running && /^\[  PASSED  \].* test\(s\)/ { sum_ok[name] += number($0) }
file == 2 && !running && /^\[  FAILED  \].* test\(s\)/ { sum_bad[name] += number($0) }
file == 2 && !running && /^\[  SKIPPED \].* test\(s\)/ { sum_left_out[name] += number($0) }

function number(line) {
    sub(/ test\(s\).*/, "", line)
    sub(/.*[^0-9]/, "", line)
    return line + 0
}

END {
    passed = failed = skipped = 0
    for (name in ending) {
        p = max(ok[name], sum_ok[name])
        f = max(bad[name], sum_bad[name])
        s = max(left_out[name], sum_left_out[name])
        if (p + f + s == 0) { # not a cmocka program
            p = ending[name] == "passed"
            f = ending[name] == "failed"
            s = ending[name] == "skipped"
        } else if (ending[name] == "failed" && f == 0) {
            f = 1 # a crash, a leak, a time-out
        }
        passed += p
        failed += f
        skipped += s
    }
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
}
