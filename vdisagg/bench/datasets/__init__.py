"""What a load asks: prompts that are drawn, conversations from a file, or a trace with its clock."""
