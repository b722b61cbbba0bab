//! What a replica says of itself in its state Secret.
