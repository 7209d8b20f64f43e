"""The tasks, by name. Each module has LEVELS and make(rng, level, unseen) -> Example. Recall is a primer, not a test."""

from tasks import arithmetic, choice, dialogue, episodes, functions, recall, retrieval, tools, tracing

TASKS = {
    "arithmetic": arithmetic,
    "choice": choice,
    "retrieval": retrieval,
    "tools": tools,
    "episodes": episodes,
    "tracing": tracing,
    "functions": functions,
    "dialogue": dialogue,
    "recall": recall,
}
