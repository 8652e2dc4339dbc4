"""The helper `final_answer` of the policy's code; the text of this file goes ahead of that code."""

RECORD_FILE = "final_answer.txt"  # in the directory that the code starts in


def make_final_answer(record_path):
    """Returns the helper; when called it looks up no name that the code may have redefined, such as `str`."""
    import sys

    open_record = open

    def final_answer(answer):
        """Hands in an answer: prints it boxed and records it; the last call counts."""
        text = f"{answer!s}"
        sys.stdout.write(f"\\boxed{{{text}}}\n")
        with open_record(record_path, "w", encoding="utf-8") as record:
            record.write(text)

    return final_answer
