"""What the page "Your own program" needs beside its text."""
