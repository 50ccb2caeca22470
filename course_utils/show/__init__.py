"""How things show themselves: formats of numbers, tables as text and HTML, figures, forms. Knows no kind of result."""
