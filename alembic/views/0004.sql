-- One row per generation: what it used, how fast it came, and what of it was thrown away: all of one that no candidate
-- came of (a fork's kernel that was there already included), and of a main that was terminated early the reasoning
-- behind the prefix from which the terminating kernel was forked.
CREATE VIEW generation_use AS
SELECT g.id AS generation_id, g.job_id, g.iteration, g.kind, g.finish_reason,
       g.prompt_tokens, g.cached_tokens, g.reasoning_tokens, g.completion_tokens, g.usage_reported, g.cost,
       SECONDS(g.first_token_at, g.started_at) AS first_token_s,
       SECONDS(g.ended_at, g.started_at) AS seconds,
       g.longest_gap_s,
       CASE
           WHEN EXISTS (SELECT 1 FROM candidates c WHERE c.generation_id = g.id) THEN 0.0
           WHEN g.kind = 'main' AND i.reason = 'early_termination' AND LENGTH(g.reasoning) > 0 THEN
               g.completion_tokens * (1.0 - COALESCE((
                   SELECT MIN(f.prefix_chars) FROM candidates k JOIN generations f ON f.id = k.generation_id
                   WHERE k.job_id = g.job_id AND k.candidate_id = i.chosen_candidate
                         AND f.iteration = g.iteration AND f.prefix_chars <= LENGTH(g.reasoning)
               ), 0) * 1.0 / LENGTH(g.reasoning))
           ELSE g.completion_tokens * 1.0
       END AS thrown_away_tokens
FROM generations g
JOIN iterations i ON i.job_id = g.job_id AND i.iteration = g.iteration;

-- Per job and kind of generation.
CREATE VIEW token_use AS
SELECT job_id, kind,
       COUNT(*) AS generations,
       SUM(prompt_tokens) AS prompt_tokens, SUM(cached_tokens) AS cached_tokens,
       SUM(reasoning_tokens) AS reasoning_tokens, SUM(completion_tokens) AS completion_tokens,
       SUM(thrown_away_tokens) AS thrown_away_tokens,
       SUM(cost) AS cost,
       AVG(first_token_s) AS mean_first_token_s, MAX(longest_gap_s) AS longest_gap_s
FROM generation_use
GROUP BY job_id, kind;
