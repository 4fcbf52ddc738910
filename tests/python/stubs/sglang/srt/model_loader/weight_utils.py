import os

BAR_FORMAT = "{desc}: {percentage:3.0f}% of {total_fmt}\n"


def maybe_add_mtp_safetensors(hf_weights_files, hf_folder: str, index_file: str, hf_config):
    extra = os.path.join(hf_folder, "mtp.safetensors")
    return [*hf_weights_files, extra] if os.path.isfile(extra) else hf_weights_files
