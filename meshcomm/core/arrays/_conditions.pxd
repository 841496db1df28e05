cpdef bint are_seen() except -1
