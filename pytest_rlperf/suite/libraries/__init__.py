"""The suite on libraries: every component that a library has a builder for, at the sizes of the reference's tests."""
