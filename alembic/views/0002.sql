-- Views for people. The same text for SQLite and Postgres; SECONDS(later, earlier) is replaced by the migration.
-- A kernel "counts" where its final outcome has a speedup: it is valid and was profiled (an entry of H).

-- One row per job: its answer, the fastest kernel that counts (the earliest of equals).
CREATE VIEW best_kernels AS
SELECT job_id, problem, backend, model, search, state, candidate_id, speedup, iteration, origin, source
FROM (
    SELECT o.job_id, j.problem, j.backend, j.model, j.search, j.state, o.candidate_id, o.speedup, o.iteration,
           o.origin, c.source,
           ROW_NUMBER() OVER (PARTITION BY o.job_id ORDER BY o.speedup DESC, o.id) AS place
    FROM outcomes o
    JOIN jobs j ON j.id = o.job_id
    JOIN candidates c ON c.job_id = o.job_id AND c.candidate_id = o.candidate_id
    WHERE o.speedup IS NOT NULL
) ranked
WHERE place = 1;

-- One row per trigger: what it launched, how long until the first profile of one of its kernels was there, and whether
-- one of its kernels ended the iteration.
CREATE VIEW trigger_feedback AS
SELECT t.id AS trigger_id, t.job_id, t.iteration, t.trigger_class, t.position, t.launched,
       COUNT(o.id) AS outcomes,
       COUNT(o.speedup) AS valid,
       MAX(o.speedup) AS best_speedup,
       MIN(CASE WHEN o.speedup IS NOT NULL THEN SECONDS(o.finished_at, t.fired_at) END) AS feedback_s,
       MAX(CASE WHEN i.reason = 'early_termination' AND i.chosen_candidate = o.candidate_id THEN 1 ELSE 0 END)
           AS terminating
FROM triggers t
JOIN iterations i ON i.job_id = t.job_id AND i.iteration = t.iteration
LEFT JOIN candidates c ON c.trigger_id = t.id
LEFT JOIN outcomes o ON o.job_id = c.job_id AND o.candidate_id = c.candidate_id AND o.iteration = t.iteration
GROUP BY t.id, t.job_id, t.iteration, t.trigger_class, t.position, t.launched;

-- Per job and trigger class: how often it fired and launched, what its forks gave, how many iterations they ended.
CREATE VIEW trigger_value AS
SELECT job_id, trigger_class,
       COUNT(*) AS triggers,
       SUM(CASE WHEN launched > 0 THEN 1 ELSE 0 END) AS launching,
       SUM(launched) AS forks,
       SUM(outcomes) AS outcomes,
       SUM(valid) AS valid,
       SUM(terminating) AS terminating,
       AVG(best_speedup) AS mean_best_speedup,
       AVG(feedback_s) AS mean_feedback_s
FROM trigger_feedback
GROUP BY job_id, trigger_class;

-- One row per iteration.
CREATE VIEW iteration_summary AS
SELECT i.job_id, i.iteration, i.reason, i.threshold, i.template_hash, i.opened_at, i.closed_at,
       CASE WHEN i.reason = 'early_termination' THEN 1 ELSE 0 END AS early_termination,
       SECONDS(i.closed_at, i.opened_at) AS seconds,
       i.chosen_candidate,
       (SELECT o.speedup FROM outcomes o WHERE o.job_id = i.job_id AND o.candidate_id = i.chosen_candidate)
           AS chosen_speedup,
       (SELECT MAX(o.speedup) FROM outcomes o WHERE o.job_id = i.job_id AND o.iteration = i.iteration)
           AS best_speedup,
       (SELECT COUNT(*) FROM candidates c WHERE c.job_id = i.job_id AND c.iteration = i.iteration) AS candidates,
       (SELECT COUNT(*) FROM outcomes o WHERE o.job_id = i.job_id AND o.iteration = i.iteration) AS outcomes,
       (SELECT COUNT(o.speedup) FROM outcomes o WHERE o.job_id = i.job_id AND o.iteration = i.iteration) AS profiled,
       (SELECT COUNT(*) FROM triggers t WHERE t.job_id = i.job_id AND t.iteration = i.iteration) AS triggers,
       g.forks, g.prompt_tokens, g.cached_tokens, g.reasoning_tokens, g.completion_tokens,
       f.feedback_s
FROM iterations i
LEFT JOIN (
    SELECT job_id, iteration,
           SUM(CASE WHEN kind = 'fork' THEN 1 ELSE 0 END) AS forks,
           SUM(prompt_tokens) AS prompt_tokens, SUM(cached_tokens) AS cached_tokens,
           SUM(reasoning_tokens) AS reasoning_tokens, SUM(completion_tokens) AS completion_tokens
    FROM generations GROUP BY job_id, iteration
) g ON g.job_id = i.job_id AND g.iteration = i.iteration
LEFT JOIN (
    SELECT job_id, iteration, AVG(feedback_s) AS feedback_s FROM trigger_feedback GROUP BY job_id, iteration
) f ON f.job_id = i.job_id AND f.iteration = i.iteration;

-- The curve of best-so-far against time: one row per kernel that counts, in the order of H.
CREATE VIEW best_so_far AS
SELECT o.job_id, o.iteration, o.candidate_id, o.origin, o.speedup,
       ROW_NUMBER() OVER (PARTITION BY o.job_id ORDER BY o.id) AS place,
       SECONDS(o.recorded_at, j.created_at) AS seconds,
       MAX(o.speedup) OVER (PARTITION BY o.job_id ORDER BY o.id ROWS UNBOUNDED PRECEDING) AS best
FROM outcomes o
JOIN jobs j ON j.id = o.job_id
WHERE o.speedup IS NOT NULL;
