"""Operations of torch whose third derivatives torch cannot take by itself."""
