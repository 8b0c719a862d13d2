"""What came of a run, by name; plain texts, which command lines read without torch."""

TARGETS = {
    "gap": "test loss − training loss",
    "error_gap": "training accuracy − test accuracy",
    "test_loss": "test loss",
    "test_error": "1 − test accuracy",
}
LAST_EPOCH = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
TRAINING = ("train_loss", "train_accuracy")  # say how far training went, not what came of it
# What a table of networks may say of each without being told that it is an outcome.
KNOWN_OUTCOMES = (*LAST_EPOCH, "gap", "error_gap", "test_error")
VALIDATION = ("validation_loss", "validation_accuracy")  # None where a study has no such data
