# Draws the rows in $CIS_INPUT. Needs nothing but awk: every string of the JSON is put on a line of its own.
printf '%s' "$CIS_INPUT" | tr '{}[],"' '\n' | awk -F= '
    want_title && NF && $0 != ":" { title = $0; want_title = 0 }
    $0 == "title"                 { want_title = 1 }
    NF == 2 && $2 ~ /^[0-9]+$/    { name[++n] = $1; value[n] = $2; if ($2 > most) { most = $2; best = $1 } }
    END {
        if (!n) { print "no rows of NAME=NUMBER in the input" > "/dev/stderr"; exit 1 }
        if (title) print title
        for (i = 1; i <= n; i++) {
            bar = ""
            for (j = 0; j < 30 * value[i] / (most ? most : 1); j++) bar = bar "#"
            printf "%-8s %-30s %d\n", name[i], bar, value[i]
        }
        if (ENVIRON["CIS_OUTPUT"]) printf "best=%s\nrows=%d\n", best, n >> ENVIRON["CIS_OUTPUT"]
    }'
