//! Which tracked flows end when the kernel's maps change, and how.
