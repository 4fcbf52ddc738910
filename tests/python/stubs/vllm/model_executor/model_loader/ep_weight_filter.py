import re


def should_skip_weight(weight_name: str, local_expert_ids: set[int] | None) -> bool:
    found = re.search(r"\.experts\.(\d+)\.", weight_name)
    if local_expert_ids is None or found is None or not weight_name.endswith(".weight"):
        return False
    return int(found[1]) not in local_expert_ids
