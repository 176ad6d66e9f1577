"""How TFF computations are taken apart, checked and simulated: their forms, secure sums, sizes and errors."""
