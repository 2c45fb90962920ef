"""Instruments: what compressing K/V does to the predictions and answers of one's own model.

    arms.py                      what is compared, and what all share
    windows.py, perplexity.py, divergence.py
                                 perplexity and divergence over windows of a text
    gate.py, gate_run.py         do two runs choose the same tokens, and does it matter where they do not
    damage.py                    candidates broken on purpose, which the gate must refuse
    needles.py, tracking.py, rewrites.py, counting.py, copying.py
                                 tasks that make questions with known answers (sample.py)
    shift.py, shift_run.py       does a model go on counting when half of a full context is dropped
    fit.py, answers.py, scoring.py, cells.py, suite.py
                                 questions of a length, answers of a model, what they are worth
    result.py, stamp.py          one JSON object per evaluation, which says what it was made of
    statistics.py                intervals

docs/EVALS.md says how to read the figures. Nothing here prints; `polykv.commands.eval` does.
"""
