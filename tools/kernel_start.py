"""What a kernel of ``make lab`` runs first: whoever runs a cell before the lesson's imports is told so."""


def _tell_who_begins_in_the_middle() -> None:
    import sys

    from IPython import get_ipython

    def shown(shell, kind, error, trace, tb_offset=None):
        if "course_utils" not in sys.modules:
            error.add_note("Run the lesson's first code cell first, even if it is folded: it imports what others use.")
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    get_ipython().set_custom_exc((NameError,), shown)


_tell_who_begins_in_the_middle()
del _tell_who_begins_in_the_middle
