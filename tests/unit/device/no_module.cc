int bascule_no_entry_here = 0;
