"""Single kernels: counted work, fitted utilisation, and the slots that their times go to."""
