_BAR_FORMAT = "{desc}: {percentage:3.0f}% of {total_fmt}\n"


def enable_tqdm(use_tqdm_on_load: bool):
    return use_tqdm_on_load


def filter_mm_encoder_only_safetensors_files(
    hf_weights_files,
    hf_folder: str,
    index_file: str,
    language_model_prefixes,
    *,
    weights_mapper=None,
):
    """The real one looks names up in the index; here the name of a file says what is in it."""
    prefixes = language_model_prefixes
    return [path for path in hf_weights_files if not any(prefix in path for prefix in prefixes)]
