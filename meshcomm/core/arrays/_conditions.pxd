cpdef bint are_seen() except -1
cpdef bint may_wait() except -1
