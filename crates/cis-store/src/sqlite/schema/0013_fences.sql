-- A fence is its epoch and a count. The count had 32 bits, so two restores, which leap over a million epochs each, took
-- fences past 2^53, where JavaScript and others round the numbers of JSON, and with them the right to a claim. The count
-- has 20 bits now, and 33 are left for epochs.
--
-- Epochs go on above every fence there has been: all of epoch e are below (e + 1) << 32. Where that would leave room for
-- fewer than 64 restores, fences are numbered anew, in their order, from an epoch that is higher than any before, since
-- the runner serves no lower one; and above (lives since the last restore) << 32, since fences below that were granted
-- before the first one.
CREATE TEMP TABLE renumbering AS
    SELECT max(value + 1, ((value & 1048575) + 1) << 12) AS epoch FROM counters
    WHERE name = 'coordinator_epoch' AND ((value + 1) << 12) > 8522825728;

-- What the runner still has keeps its number: its journal and its processes know it by that, and no client does.
CREATE TEMP TABLE renumbered (old INTEGER PRIMARY KEY, new INTEGER NOT NULL);
INSERT INTO temp.renumbered
    SELECT fence, ((SELECT epoch FROM temp.renumbering) << 20) + row_number() OVER (ORDER BY fence)
    FROM (SELECT fence FROM task_executions
              WHERE EXISTS (SELECT 1 FROM temp.renumbering) AND fence IS NOT NULL
                AND (status NOT IN ('running', 'cancelling') OR execution_id IN (SELECT execution_id FROM leases))
          UNION SELECT fence FROM notes WHERE EXISTS (SELECT 1 FROM temp.renumbering)
          UNION SELECT fence FROM leases WHERE EXISTS (SELECT 1 FROM temp.renumbering));
UPDATE task_executions SET fence = (SELECT new FROM temp.renumbered WHERE old = fence)
    WHERE EXISTS (SELECT 1 FROM temp.renumbering) AND fence IN (SELECT old FROM temp.renumbered);
CREATE TEMP TABLE moved_notes AS SELECT * FROM notes WHERE EXISTS (SELECT 1 FROM temp.renumbering);
DELETE FROM notes WHERE EXISTS (SELECT 1 FROM temp.renumbering);
INSERT INTO notes
    SELECT execution_id, (SELECT new FROM temp.renumbered WHERE old = fence), number, holder, at, percent, note
    FROM temp.moved_notes;

-- Holders know only the old number, so their leases are over: the next coordinator gives back what they held, in
-- transitions with their events. Until then nothing is heard of them, as of any lease that ran out.
UPDATE leases SET fence = (SELECT new FROM temp.renumbered WHERE old = fence), expires = -1
    WHERE EXISTS (SELECT 1 FROM temp.renumbering);
-- Which attempts a named claim took: it holds none of them any more.
UPDATE idempotency_keys SET answer = '[]'
    WHERE EXISTS (SELECT 1 FROM temp.renumbering) AND substr(key, 1, 1) = char(10);

UPDATE counters SET value = CASE WHEN EXISTS (SELECT 1 FROM temp.renumbering)
        THEN (SELECT epoch FROM temp.renumbering) + ((SELECT count(*) FROM temp.renumbered) >> 20)
        ELSE (value + 1) << 12 END
    WHERE name = 'coordinator_epoch' AND value > 0;
DROP TABLE temp.renumbering;
DROP TABLE temp.renumbered;
DROP TABLE temp.moved_notes;
