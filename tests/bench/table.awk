# Tables of the lines that bench_train and peers.py print, a file for each network. Of several runs the
# least counts, of the machine the most.
BEGIN {
    peers = split("eager channels_last compile compile_channels_last onnxruntime", peer)
}

{
    delete word
    for (i = 1; i <= NF; i++) {
        at = index($i, "=")
        word[substr($i, 1, at - 1)] = substr($i, at + 1)
    }
    name = word["model"]
    who = word["who"]
    if (name == "machine") {
        name = FILENAME
        sub(/.*\//, "", name)
        most(sgemm, name, word["sgemm"])
        most(triad, name, word["triad"])
        next
    }
    if (!(name in seen))
        order[++names] = name
    seen[name] = 1
    least(ms, name SUBSEP who, word["ms"])
    least(mib, name SUBSEP who, word["resident"])
    least(load, name SUBSEP who, word["load"])
    if (who == "mgpu")
        for (w in word)
            fact[name, w] = word[w]
}

function least(table, key, value) {
    if (value != "" && (!(key in table) || value + 0 < table[key]))
        table[key] = value + 0
}

function most(table, key, value) {
    if (value + 0 > table[key])
        table[key] = value + 0
}

# "-" where it was not measured
function number(table, key, format) {
    return key in table ? sprintf(format, table[key]) : "-"
}

function ratio(a, b, format) {
    return a && b ? sprintf(format, a / b) : "-"
}

function fastest(name, i, best) {
    for (i = 1; i <= peers; i++)
        if ((name, peer[i]) in ms && (!best || ms[name, peer[i]] < ms[name, best]))
            best = peer[i]
    return best
}

function row(name, table, format, i, text) {
    text = "| " name " | " number(table, name SUBSEP "mgpu", format)
    for (i = 1; i <= peers; i++)
        text = text " | " number(table, name SUBSEP peer[i], format)
    return text
}

function compare(k, name, a, b) {
    print "| network | ms, " against " | ms, now | faster | MiB, " against " | MiB, now | memory |"
    print "| --- | --- | --- | --- | --- | --- | --- |"
    for (k = 1; k <= names; k++) {
        name = order[k]
        a = name SUBSEP "before"
        b = name SUBSEP "mgpu"
        printf "| %s | %s | %s | %s | %s | %s | %s |\n", name, number(ms, a, "%.2f"), number(ms, b, "%.2f"),
            ratio(ms[a], ms[b], "%.2fx"), number(mib, a, "%.0f"), number(mib, b, "%.0f"), ratio(mib[b], mib[a], "%.2fx")
    }
}

function heading(title, last) {
    print title "\n"
    print "| network | mgpu | eager | channels last | compile | compile, channels last | ONNX Runtime | " last " |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- |"
}

function tables(k, name) {
    heading("A step, in ms:", "faster than the fastest peer")
    for (k = 1; k <= names; k++) {
        name = order[k]
        print row(name, ms, "%.2f") " | " ratio(ms[name, fastest(name)], ms[name, "mgpu"], "%.2fx") " |"
    }
    heading("\nPeak memory, in MiB:", "of the fastest peer's")
    for (k = 1; k <= names; k++) {
        name = order[k]
        print row(name, mib, "%.0f") " | " ratio(mib[name, "mgpu"], mib[name, fastest(name)], "%.2fx") " |"
    }
    print "\nAgainst what the machine did before each run:\n"
    print "| network | GFLOP/s | sgemm | of it | GB/s | triad | of it | arena, MiB | lower bound | reorders | slowest operators |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for (k = 1; k <= names; k++)
        machine_row(order[k])
    print "\nTwo ranks of one thread, and the start:\n"
    print "| network | ms, one rank of two threads | ms, two ranks of one | throughput | file to first step, s |"
    print "| --- | --- | --- | --- | --- |"
    for (k = 1; k <= names; k++) {
        name = order[k]
        printf "| %s | %s | %s | %s | %s |\n", name, number(ms, name SUBSEP "mgpu", "%.2f"),
            number(ms, name SUBSEP "ranks", "%.2f"), ratio(ms[name, "mgpu"], ms[name, "ranks"], "%.2fx"),
            number(load, name SUBSEP "mgpu", "%.2f")
    }
}

function machine_row(name, seconds, flops, bytes, slow) {
    seconds = ms[name, "mgpu"] / 1000
    if (!seconds)
        return
    flops = fact[name, "gflop"] / seconds
    bytes = fact[name, "gb"] / seconds
    slow = fact[name, "slowest"]
    gsub(",", ", ", slow)
    gsub(":", " ", slow)
    printf "| %s | %.1f | %s | %s | %.2f | %s | %s | %.1f | %.1f | %s | %s |\n", name,
        flops, number(sgemm, name, "%.0f"), ratio(100 * flops, sgemm[name], "%.0f %%"),
        bytes, number(triad, name, "%.1f"), ratio(100 * bytes, triad[name], "%.0f %%"),
        fact[name, "arena"], fact[name, "bound"],
        (name, "reorders") in fact ? fact[name, "reorders"] : "-", slow
}

END {
    if (against != "")
        compare()
    else
        tables()
}
